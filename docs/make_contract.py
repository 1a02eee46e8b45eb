"""Write docs/contract.md from the table of fields; with --check, fail when it is out of date.

python docs/make_contract.py [--check]
"""

from __future__ import annotations

import sys

from generated import write_page  # finds the checkout, too

from dflash_convert.families.fields import ALL, TABLE, Field

INTRODUCTION = """# Fields of config.json

Made from `dflash_convert/families/fields.py` by `docs/make_contract.py`; edit the table, not this file.

Every field that a drafter's config.json is known to carry is *used*, *checked* (a promise that the tensors do not keep
is an error that names both), known to have *no effect*, or *refused* because llama.cpp's graph cannot express it. An
unknown field in a drafter's own table (`dflash_config`, `eagle_config`, `transformer_layer_config`, the rope tables,
speculators' tables) is a warning that names it; `--strict` makes it an error, as it does every other warning of a guess
or a fallback: two places that disagree, an encoding that does not fit a tensor's rows. At the top level only the fields
listed here mean anything.

*Backbone*: at the top level, in `transformer_layer_config` or in `text_config`; *rope table*: `rope_parameters`,
`rope_scaling` and their `full_attention` and `sliding_attention`.
"""


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "| field | where | families | treatment | reason |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(_row(field) for field in TABLE)]) + "\n"


def _row(field: Field) -> str:
    names = ", ".join(f"`{name}`" for name in field.names.split())
    families = "all" if field.families == ALL else ", ".join(field.families)
    reason = field.reason
    if field.treatment == "refused":
        harmless = ", ".join(f"`{value}`".lower() for value in field.harmless if value is not None)
        reason = f"{reason} (accepted: {harmless})"
    return f"| {names} | {', '.join(field.where)} | {families} | {field.treatment} | {reason} |"


if __name__ == "__main__":
    sys.exit(write_page("contract.md", page()))

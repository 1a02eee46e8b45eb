"""Write docs/glossary.md from the terms of the package; with --check, fail when it is out of date.

python docs/make_glossary.py [--check]
"""

from __future__ import annotations

import sys

from generated import write_page  # finds the checkout, too

from dflash_convert.glossary import TERMS

INTRODUCTION = """# Glossary

Made from `dflash_convert/glossary.py` by `docs/make_glossary.py`; edit the terms, not this file.
The report and the model card quote them.
"""


def page() -> str:
    """The whole page."""
    entries = [f'**{term.title}.** <a id="{term.anchor}"></a> {term.text}\n' for term in TERMS]
    return "\n".join([INTRODUCTION, *entries])


if __name__ == "__main__":
    sys.exit(write_page("glossary.md", page()))

"""What the shell offers for values: types, prompt sets, files where a Hub id may stand too."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def types(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Output types; behind a comma or an equals sign the next one."""
    from quant.recipe import FTYPES

    cut = max(incomplete.rfind(","), incomplete.rfind("=")) + 1
    before, begun = incomplete[:cut], incomplete[cut:]
    names = [name.lower() for name in (*FTYPES, "auto")]
    fitting = [name for name in names if name.startswith(begun.lower())]
    return [CompletionItem(before + (name.upper() if begun.isupper() else name)) for name in fitting]


def prompt_sets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from dflash_convert.validation.prompts import BUNDLED

    return [CompletionItem(name) for name in BUNDLED if name.startswith(incomplete)]


def places(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and directories; a Hub id is typed."""
    return [CompletionItem(incomplete, type="file")]

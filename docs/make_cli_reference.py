"""Write docs/cli.md from the commands' own --help; with --check, fail when it is out of date.

python docs/make_cli_reference.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from generated import write_page  # finds the checkout, too

from dflash_convert.cli import COMMANDS, cli

WIDTH = 100
EXIT_CODES = (
    ("0", "done"),
    ("1", "something unexpected; `-vv` shows the traceback"),
    ("2", "the call cannot be carried out as written"),
    ("3", "unusable input: config, tensors, tokenizer, a damaged file"),
    ("4", "drafter and target do not belong together (`check`)"),
    ("5", "a written file differs from its source (`verify`, `package --check`)"),
    ("6", "acceptance below the threshold, or a broken pair (`validate`)"),
    ("7", "llama.cpp is missing or failed"),
    ("8", "Hub: not found, gated, offline"),
    ("9", "the output exists, has no space or is not writable"),
    ("130", "interrupted"),
)
INTRODUCTION = """# Command line reference

Made from the commands' own `--help` by `docs/make_cli_reference.py`; edit the commands, not this file.

stdout carries the result: a path, a table, or with `--json` a document ([schemas](schemas.md)). Messages and progress
go to stderr; progress is a bar on a terminal and in a pipe a line every ten seconds. Lines keep to the terminal's
width, or to `COLUMNS`; commands to paste are never broken. `NO_COLOR` turns colours off. After each command the next
one is printed; capitals such as `TARGET.gguf` stand for what you have.
Vocabularies of 32,768 tokens and more are kept in `~/.cache/dflash-convert` (`XDG_CACHE_HOME`) once read, up to 16 of
them; `DFLASH_TOKENIZER_CACHE` names another directory, or is `off`. `verify` reads the files anew;
it keeps there which vocabularies llama.cpp has already been tried on.

| exit code | meaning |
|---|---|
{codes}

## Shell completion

| shell | line to add | file |
|---|---|---|
| bash | `eval "$(_DFLASH_CONVERT_COMPLETE=bash_source dflash-convert)"` | `~/.bashrc` |
| zsh | `eval "$(_DFLASH_CONVERT_COMPLETE=zsh_source dflash-convert)"` | `~/.zshrc` |
| fish | `_DFLASH_CONVERT_COMPLETE=fish_source dflash-convert \\| source` | `~/.config/fish/config.fish` |
"""


def reference() -> str:
    """The whole page."""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES)
    return "\n".join([INTRODUCTION.replace("{codes}", codes), *(_section(title, text) for title, text in helps())])


def helps() -> Iterator[tuple[str, str]]:
    """Title and --help of the program and of every command."""
    top = _context(cli, "dflash-convert")
    yield "dflash-convert", cli.get_help(top)
    for name in COMMANDS:
        command = cli.get_command(top, name)
        if command is None:
            raise SystemExit(f"{name} has no command")
        yield f"dflash-convert {name}", command.get_help(_context(command, name, top))


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip


def _section(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    sys.exit(write_page("cli.md", reference()))

"""What several commands share: options and how notes and paths are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from dflash_convert.notes import Note

F = TypeVar("F", bound=Callable[..., Any])

MARK = {"info": "", "derived": "derived: ", "skipped": "skipped: ", "warning": "WARNING: "}


def verbosity_options(command: F) -> F:
    """-q and -v: quiet keeps only errors, -v adds detail, -vv shows tracebacks."""
    command = click.option("-v", "--verbose", count=True, help="More detail; twice: tracebacks too.")(command)
    return click.option("-q", "--quiet", is_flag=True, help="No messages and no progress, errors only.")(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def say(text: str, *, quiet: bool = False) -> None:
    """A message for the person: stderr, so that stdout carries only the result."""
    if not quiet:
        click.echo(text, err=True)


def show_notes(notes: Iterable[Note], *, quiet: bool = False) -> None:
    for note in notes:
        say(f"  {MARK[note.level]}{note.text}", quiet=quiet)


def progress_wanted(quiet: bool) -> bool:
    """Progress bars only on a terminal."""
    return not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

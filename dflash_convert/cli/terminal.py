"""What one call prints: one JSON document at most on stdout, with --json also for an error; messages on stderr."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dflash_convert.errors import chain
from dflash_convert.text import UNPRINTABLE, one_line, shorten

MAX_CAUSES = 8
# a token of the Hub, what follows Authorization, and what stands before the host in a URL
SECRET = re.compile(r"hf_\w+|(?<=://)[^/@\s]+(?=@)|(?<=[Bb]earer )\S+|(?<=[Aa]uthorization: )\S+")
INTERRUPTED = 130  # as a shell counts a program that Ctrl-C ended


@dataclass
class Call:
    """What is known of the running call; click's contexts carry it as their ``obj``."""

    as_json: bool = False
    printed: bool = False  # a document: a second one would break the first


def call_of(argv: Sequence[str]) -> Call:
    """Also of a line that cannot be parsed; what follows ``--`` is llama-server's."""
    mine = argv[: argv.index("--")] if "--" in argv else argv
    return Call("--json" in mine)


def emit(document: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Print a command's one JSON document, readable, and with nothing in it that drives a terminal."""
    context = click.get_current_context(silent=True)
    call = context.find_object(Call) if context else None
    if call:
        call.printed = True
    click.echo(as_text(document, default))


def as_text(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    text = json.dumps(document, indent=1, ensure_ascii=False, default=default)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # such characters stand in strings alone


def report(call: Call, name: str, message: str, tip: str | None, exit_code: int) -> None:
    """An error: a sentence and a tip on stderr, with --json also a document, unless the command printed its own."""
    red, dim, off = ("\x1b[31m", "\x1b[2m", "\x1b[0m") if colour() else ("", "", "")
    click.echo(f"{red}ERROR{off} {one_line(message)}", err=True)
    if tip:
        click.echo(f"{dim}TIP{off}   {one_line(tip)}", err=True)
    if call.as_json and not call.printed:
        call.printed = True
        error = {"name": name, "message": one_line(message), "tip": tip and one_line(tip), "exit_code": exit_code}
        click.echo(as_text({"error": error}))


def causes(error: BaseException) -> None:
    """What led to an error, a line each on stderr; tokens and passwords are taken out."""
    dim, off = ("\x1b[2m", "\x1b[0m") if colour() else ("", "")
    for cause in itertools.islice(chain(error), 1, MAX_CAUSES):
        text = shorten(one_line(SECRET.sub("…", str(cause))), 300)
        click.echo(f"{dim}CAUSE{off} {type(cause).__module__}.{type(cause).__qualname__}: {text}", err=True)


def colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")

"""What one call prints: the result on stdout, with --json one document whatever happens; messages on stderr.

Lines keep to the terminal's width; colour says passed, doubtful or failed, and only on a terminal without NO_COLOR.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from dflash_convert import errors
from dflash_convert.cli.broken import discard_output
from dflash_convert.text import UNPRINTABLE, broken_command, one_line, printable, shorten, wrap

MAX_CAUSES = 8
# a token of the Hub, what follows Authorization, and what stands before the host in a URL
SECRET = re.compile(r"hf_\w+|(?<=://)[^/@\s]+(?=@)|(?<=[Bb]earer )\S+|(?<=[Aa]uthorization: )\S+")
INTERRUPTED = 130  # as a shell counts a program that Ctrl-C ended
PROGRAM = "dflash-convert"
COMMANDS = (f"{PROGRAM} ", "llama-server ", "hf ")  # a line to paste stays one command
GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"
DIM, OFF = "\x1b[2m", "\x1b[0m"
# every word that judges, where it stands: first on its line, or behind the name of what it judges
JUDGEMENTS = {
    GREEN: ("ok", "pass", "passed", "healthy", "faster", "done", "fits"),
    YELLOW: ("warning", "warning:", "WARNING:", "weak", "no gain", "disturbed", "blocked", "fallback:", "!!"),
    RED: ("ERROR", "error", "error:", "DIFFERENT", "broken", "engine failure", "slower", "failed", "XX"),
}
BEFORE = r"(?:validate: )?(?:verdict: |gain here: |check: |\[\d+/\d+\] \S+: |package \S+: )?"
JUDGED = {
    colour: re.compile(rf"^(\s*{BEFORE})({'|'.join(map(re.escape, words))})(?=[\s:,(]|$)")
    for colour, words in JUDGEMENTS.items()
}


# in a table a cell of its own
CELLS = {
    GREEN: ("done", "faster", "healthy"),
    YELLOW: ("no gain", "disturbed", "weak", "blocked"),
    RED: ("slower", "failed", "broken", "NO"),
}
IN_CELL = {colour: re.compile(rf"^(\s*\S.*?  +)({'|'.join(words)})(?=  |$)") for colour, words in CELLS.items()}


@dataclass
class Call:
    """What is known of the running call; click's contexts carry it as their ``obj``.

    ``left``: what an interrupted one leaves behind, a sentence without its full stop, and whether the same command then
    goes on instead of starting again; the last one counts.
    """

    argv: Sequence[str] = ()
    as_json: bool = False
    printed: bool = False  # a document: a second one would break the first
    left: list[tuple[Callable[[], str], bool]] = field(default_factory=list)

    @property
    def how_to_go_on(self) -> str:
        """For a call that was interrupted: what is left, and on a line of its own the command."""
        said, kept = self.left[-1] if self.left else (lambda: "no half-written file is left", False)
        does = "goes on" if kept else "starts again from the beginning"
        return f"{said()}; the same command {does}:\n  {PROGRAM} {shlex.join(self.argv)}"


def call_of(argv: Sequence[str]) -> Call:
    """Also of a line that cannot be parsed; what follows ``--`` is llama-server's."""
    mine = argv[: argv.index("--")] if "--" in argv else argv
    return Call(argv, "--json" in mine)


def running() -> Call:
    context = click.get_current_context(silent=True)
    return (context.find_object(Call) if context else None) or Call()


@contextmanager
def leaving(left: str | Callable[[], str], *, goes_on: bool = False) -> Iterator[None]:
    """Inside, an interrupt is told what is left behind, and what the same command does then."""
    call = running()
    call.left.append((left if callable(left) else lambda: left, goes_on))
    yield
    call.left.pop()


def stays(left: str | Callable[[], str], *, goes_on: bool = True) -> None:
    """As :func:`leaving`, from here on: for what is kept whenever the interrupt comes."""
    running().left.append((left if callable(left) else lambda: left, goes_on))


def stays_fetched(*words: str | None) -> bool:
    """As :func:`stays` where one of ``words``, drafters and targets, is on the Hub; whether one is."""
    remote = any(word is not None and not Path(word).expanduser().exists() for word in words)
    if remote:
        stays("what was fetched from the Hub is kept")
    return remote


def emit(document: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Print a command's one JSON document, readable, and with nothing in it that drives a terminal."""
    running().printed = True
    click.echo(as_text(document, default))


def as_text(document: Any, default: Callable[[Any], Any] | None = None) -> str:
    text = json.dumps(document, indent=1, ensure_ascii=False, default=default)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # such characters stand in strings alone


def kind_of(error: Exception) -> str:
    """The name of the error's class among those of :mod:`dflash_convert.errors`, which are documented."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__), "DflashError")


def report(call: Call, name: str, message: str, tip: str | None, exit_code: int) -> None:
    """An error: a sentence and a tip on stderr, with --json also a document, unless the command printed its own."""
    try:
        echo(f"ERROR {one_line(message)}", err=True)
        if tip:
            echo(f"TIP   {tip}", err=True)
        _report_json(call, name, message, tip, exit_code)
    except OSError:  # nobody can be told
        discard_output()


def _report_json(call: Call, name: str, message: str, tip: str | None, exit_code: int) -> None:
    if call.as_json and not call.printed:
        call.printed = True
        error = {"name": name, "message": one_line(message), "tip": tip, "exit_code": exit_code}
        click.echo(as_text({"error": error}))


def causes(error: BaseException) -> None:
    """What led to an error, a line each on stderr; tokens and passwords are taken out."""
    for cause in itertools.islice(errors.chain(error), 1, MAX_CAUSES):
        text = shorten(one_line(SECRET.sub("…", str(cause))), 300)
        echo(f"CAUSE {type(cause).__module__}.{type(cause).__qualname__}: {text}", err=True)


def engine_log(error: BaseException) -> None:
    """The end of what an engine wrote that failed, on stderr."""
    log = next((found for each in errors.chain(error) if (found := getattr(each, "log", ""))), "")
    if isinstance(log, str) and log:
        echo("the end of the engine's log:\n" + log, err=True)


def echo(text: str, *, err: bool = False) -> None:
    """Print text that may hold a stranger's words: names and values of a checkpoint or a GGUF."""
    room, coloured = width(err=err), has_colour(err=err)
    lines = []
    for line in printable(text).split("\n"):
        for part in (broken_command if line.lstrip().startswith(COMMANDS) else wrap)(line, room):
            lines.append(_coloured(part) if coloured else part)
    with _beside_bars():
        click.echo("\n".join(lines), err=err, color=coloured or None)


def _coloured(line: str) -> str:
    for colour, pattern in (*JUDGED.items(), *IN_CELL.items()):
        found = pattern.match(line)
        if found:
            return f"{found[1]}{colour}{found[2]}{OFF}{line[found.end() :]}"
    return f"{DIM}{line}{OFF}" if line.startswith(("TIP ", "CAUSE ")) else line


@contextmanager
def _beside_bars() -> Iterator[None]:
    """A line printed while a bar is shown stands above it."""
    if "tqdm" not in sys.modules:
        yield
        return
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stderr):
        yield


def width(*, err: bool = False) -> int | None:
    """Of the terminal, or as COLUMNS says; None where lines may be as long as they are, as in a pipe."""
    stated = os.environ.get("COLUMNS", "")
    if stated.isascii() and stated.isdecimal() and int(stated) >= 20:
        return int(stated)
    try:
        return os.get_terminal_size((sys.stderr if err else sys.stdout).fileno()).columns or None
    except (OSError, ValueError, AttributeError):  # no terminal, or no descriptor at all
        return None


def has_colour(*, err: bool = False) -> bool:
    stream = sys.stderr if err else sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def on_terminal(*, err: bool = False) -> bool:
    """Whether someone looks, and what is written can be overwritten."""
    return (sys.stderr if err else sys.stdout).isatty() and os.environ.get("TERM") != "dumb"

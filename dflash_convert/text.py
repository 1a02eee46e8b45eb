"""Text for people: a stranger's words made harmless, shortened, in columns; one form for each kind of figure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

# control characters, unpaired surrogates, and marks that reverse the writing direction
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with what could drive a terminal as escapes; line breaks and tabs stay."""
    return UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """As :func:`printable`, and line breaks as escapes too."""
    return printable(text).replace("\n", "\\n")


def reason(error: Exception) -> str:
    """Why the system refused, in its words alone: no number, and no second copy of the path."""
    return getattr(error, "strerror", None) or str(error)


def shorten(text: str, limit: int = 60) -> str:
    """At most ``limit`` characters; a cut shows as an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short(value: Any) -> str:
    """A value of a file fit for a message: as Python writes it, at most 60 characters."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return number(value)
    return shorten(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))


def number(value: float) -> str:
    """As ``:g``, but whole numbers keep their digits: a rope base is 1000000, not 1e+06."""
    whole = abs(value) < 1e15 and value == int(value)
    return str(int(value)) if whole else f"{value:g}"


def counted(count: int, thing: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s"


def percent(share: float, digits: int = 1, *, signed: bool = False) -> str:
    """``share`` is a fraction of 1; more ``digits`` where shares crowd near the whole."""
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


MIB = 1 << 20  # bytes


def size(nbytes: float) -> str:
    """Bytes in MiB or GiB, the units of all output, of files and of memory alike: llama.cpp's log and the tools of
    graphics cards count so, and a file's size, what its weights take by plan and what an engine says can be compared.
    What is typed may be in either unit (:mod:`dflash_convert.memory.fit`)."""
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):,.2f} GiB"
    return f"{nbytes / MIB:,.1f} MiB" if nbytes >= MIB / 10 else f"{nbytes / MIB:.3f} MiB"


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s``, ``1 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def named(names: Sequence[str], most: int = 4, width: int | None = 30) -> str:
    """The first ``most`` of them, each cut to ``width`` characters, and how many more."""
    shown = ", ".join(name if width is None else shorten(name, width) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def wrap(line: str, width: int | None) -> list[str]:
    """``line`` broken between words, what follows indented two more; a word longer than ``width`` stays whole."""
    if width is None or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())] + "  "
    wrapped = textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return wrapped or [line]


# a word of a shell's line as it is written, quotes and all
SHELL_WORD = re.compile(r"""(?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\.)+""", re.DOTALL)
SCREEN = 80  # columns that every terminal has


def broken_command(line: str, width: int | None = SCREEN) -> list[str]:
    """A shell's ``line`` in lines of at most ``width`` to paste: each but the last ends in a backslash. An option keeps
    its value, so that a long path may stand out."""
    words = SHELL_WORD.findall(line)
    if width is None or len(line) <= width or " ".join(words) != line.strip():
        return [line]
    parts: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        if before.startswith("-") and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    indent = line[: len(line) - len(line.lstrip())]
    lines = [indent + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + len("  \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"{indent}  {part}")
    return [*(f"{each} \\" for each in lines[:-1]), lines[-1]]


NARROWEST = 8  # of a column that is narrowed
GAP = 2


def columns(rows: Sequence[Sequence[str] | None], align: str = "<", width: int | None = None) -> list[str]:
    """Lines of a table: ``align`` has ``<`` or ``>`` per column, its last one for all that follow; None is a rule.

    At most ``width`` wide: its widest columns are broken into several lines of a row, numbers excepted.
    """
    cells = [row for row in rows if row is not None]
    widths = _narrowed([list(column) for column in zip(*cells, strict=True)], width)
    right = [side == ">" for side in align.ljust(len(widths), align[-1])]
    lines = []
    for row in rows:
        if row is None:
            lines.append([("-" * each) for each in widths])
            continue
        parts = [textwrap.wrap(cell, each) or [""] for cell, each in zip(row, widths, strict=True)]
        for number in range(max(map(len, parts), default=0)):
            lines.append([part[number] if number < len(part) else "" for part in parts])

    def line(row: Sequence[str]) -> str:
        padded = zip(row, widths, right, strict=True)
        return (" " * GAP).join(cell.rjust(each) if to_right else cell.ljust(each) for cell, each, to_right in padded)

    return [line(row).rstrip() for row in lines]


def _narrowed(cells: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Widths of the columns; the widest gives first, down to its longest number."""
    widths = [max(map(len, column)) for column in cells]
    if width is None:
        return widths
    least = [max((len(cell) for cell in column if cell[:1].isdigit()), default=0) for column in cells]
    least = [min(full, max(low, NARROWEST)) for low, full in zip(least, widths, strict=True)]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        spare = [full - low for full, low in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widths[max(range(len(widths)), key=lambda i: (spare[i] > 0, widths[i]))] -= 1
    return widths

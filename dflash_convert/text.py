"""Text for people: a stranger's words made harmless, shortened, in columns."""

from __future__ import annotations

import re
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


def shorten(text: str, limit: int = 60) -> str:
    """At most ``limit`` characters; a cut shows as an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short(value: Any) -> str:
    """A value of a file fit for a message: as Python writes it, at most 60 characters."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return f"{value:g}"
    return shorten(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value))


def columns(rows: Sequence[Sequence[str] | None], align: str = "<") -> list[str]:
    """Lines of a table: ``align`` has ``<`` or ``>`` per column, its last one for all that follow; None is a rule."""
    cells = [row for row in rows if row is not None]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [side == ">" for side in align.ljust(len(widths), align[-1])]
    rule = ["-" * width for width in widths]

    def line(row: Sequence[str]) -> str:
        padded = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in padded)

    return [line(rule if row is None else row).rstrip() for row in rows]

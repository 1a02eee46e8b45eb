"""Text for people: a stranger's words made harmless, shortened, in columns, in Markdown."""

from __future__ import annotations

import re

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

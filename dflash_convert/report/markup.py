"""Escaped HTML from untrusted values: names, prompts and texts come out of files that anyone may have written."""

from __future__ import annotations

import html
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from dflash_convert.text import percent as as_percent

# what XML 1.0 does not allow in a document, lone surrogates included
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DASH = "–"
EMPTY = (None, "", ())
WIDE = 5  # columns from which on a table is wider than a phone


def text(value: Any) -> str:
    """Escaped for content and for quoted attributes; None becomes a dash."""
    if value is None:
        return DASH
    return html.escape(_FORBIDDEN.sub("\ufffd", str(value)), quote=True)


def tag(name: str, content: str = "", /, **attributes: Any) -> str:
    """An element around ``content``, which is markup already; attribute values are escaped."""
    return f"<{name}{_attributes(attributes)}>{content}</{name}>"


def void(name: str, /, **attributes: Any) -> str:
    return f"<{name}{_attributes(attributes)} />"


def _attributes(values: dict[str, Any]) -> str:
    return "".join(f' {key.rstrip("_").replace("_", "-")}="{text(v)}"' for key, v in values.items() if v is not None)


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    caption: str,
    numbers: int | None = None,
    marked: Container[int] = (),
) -> str:
    """A table with a caption and header cells; the columns from ``numbers`` on are aligned as numbers, and those that
    hold nothing in any row are left out. The rows ``marked`` stand out."""
    kept = list(rows)
    first = len(head) if numbers is None else numbers
    columns = [i for i in range(len(head)) if i == 0 or any(row[i] not in EMPTY for row in kept)]
    kinds = {i: None if i < first else "n" for i in columns}
    top = "".join(tag("th", text(head[i]), scope="col", class_=kinds[i]) for i in columns)
    body = []
    for at, row in enumerate(kept):
        cells = [tag("th", text(row[0]), scope="row")]
        cells += [tag("td", text(row[i]), class_=kinds[i]) for i in columns[1:]]
        body.append(tag("tr", "".join(cells), class_="marked" if at in marked else None))
    inner = tag("thead", tag("tr", top)) + tag("tbody", "".join(body))
    return _scrolling(caption, inner, box="scroll wide" if len(columns) >= WIDE else "scroll")


def facts(rows: Iterable[tuple[str, Any]], caption: str) -> str:
    """A two-column table of names and values; rows without a value are left out."""
    kept = [row for row in rows if row[1] not in EMPTY]
    body = "".join(tag("tr", tag("th", text(name), scope="row") + tag("td", text(value))) for name, value in kept)
    return _scrolling(caption, tag("tbody", body), "facts")


def _scrolling(caption: str, inner: str, table: str | None = None, box: str = "scroll") -> str:
    """A table in a box that scrolls where the page is too narrow: the shadow at its edge shows that there is more, a
    wide one says so on a phone, and the box can be reached and scrolled by keyboard."""
    content = tag("table", tag("caption", text(caption)) + inner, class_=table)
    return tag("div", content, class_=box, tabindex="0", role="region", aria_label=caption)


def section(title: str, *parts: str) -> str:
    content = "".join(part for part in parts if part)
    return tag("section", tag("h2", text(title)) + content) if content else ""


def percent(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else as_percent(value, digits)


def number(value: float | None, digits: int = 2) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"

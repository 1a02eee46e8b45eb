"""Charts as inline SVG: no script, colours from the page's own variables, a text alternative in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash_convert.report.markup import tag, text, void
from dflash_convert.text import shorten

WIDTH = 380
BAR, GAP = 15, 7
MAX_BARS = 60
LABEL = 22  # characters of a label
LEGEND = 48  # characters of a series' name
SERIES = 8  # colours of the style sheet


class Bar(NamedTuple):
    """One bar: ``label`` beside it, ``value`` its length, ``shown`` that value in words, ``series`` its colour."""

    label: str
    value: float
    shown: str
    series: int = 0


def bars(title: str, items: Sequence[Bar], top: float | None = None, series: Sequence[str] = ()) -> str:
    """Horizontal bars, ``top`` the value of a full-length one; a legend when there are several series."""
    items = items[:MAX_BARS]
    if not items:
        return ""
    highest = top or max(item.value for item in items) or 1.0
    label = min(150, 12 + 6 * max(len(shorten(item.label, LABEL)) for item in items))
    room = WIDTH - label - 62
    y, parts = 4, []
    for before, item in zip((None, *items[:-1]), items, strict=True):
        y += 0 if before is None else GAP if before.label != item.label else 2
        length = max(1.0, room * min(max(item.value, 0.0) / highest, 1.0))
        repeated = before is not None and before.label == item.label
        if not repeated:
            parts.append(
                tag("text", text(shorten(item.label, LABEL)), x=label - 6, y=y + 11, class_="label", text_anchor="end")
            )
        parts.append(void("rect", x=label, y=y, width=round(length, 1), height=BAR, rx=2, class_=f"s{item.series}"))
        parts.append(tag("text", text(item.shown), x=round(label + length + 5, 1), y=y + 11, class_="value"))
        y += BAR
    key, y = legend(series, y + 10)
    values = "; ".join(f"{item.label}{_series(series, item)}: {item.shown}" for item in items)
    return figure(title, values, y, "".join(parts) + key)


def columns(title: str, items: Sequence[Bar], top: float = 1.0) -> str:
    """Vertical bars with their values above, for a sequence such as the positions of a block."""
    items = items[:MAX_BARS]
    if not items:
        return ""
    height, base = 120, 140
    step = (WIDTH - 16) / len(items)
    width = min(34.0, step * 0.72)
    parts = [void("line", x1=8, y1=base, x2=WIDTH - 8, y2=base, class_="axis")]
    dense = step < 30
    for index, item in enumerate(items):
        middle = round(8 + step * (index + 0.5), 1)
        tall = round(max(1.0, height * min(max(item.value, 0.0) / top, 1.0)), 1)
        parts.append(
            void(
                "rect",
                x=round(middle - width / 2, 1),
                y=base - tall,
                width=round(width, 1),
                height=tall,
                rx=2,
                class_="s0",
            )
        )
        if not dense or index % 2 == 0:
            parts.append(tag("text", text(item.label), x=middle, y=base + 14, class_="label", text_anchor="middle"))
        if not dense:
            parts.append(
                tag("text", text(item.shown), x=middle, y=base - tall - 4, class_="value", text_anchor="middle")
            )
    values = "; ".join(f"{item.label}: {item.shown}" for item in items)
    return figure(title, values, base + 22, "".join(parts))


def legend(series: Sequence[str], y: int) -> tuple[str, int]:
    """Names with the colours of their places in ``series``, in as many lines as they need, and where those end; empty
    names are left out, and a single one has no legend."""
    if sum(map(bool, series)) < 2:
        return "", y - 6
    parts, x = [], 8
    for index, name in enumerate(series):
        shown = shorten(name, LEGEND)
        if not name:
            continue
        if x > 8 and x + 16 + 6 * len(shown) > WIDTH:
            x, y = 8, y + 16
        parts.append(void("rect", x=x, y=y, width=11, height=11, rx=2, class_=f"s{index}"))
        parts.append(tag("text", text(shown), x=x + 16, y=y + 10, class_="label"))
        x += 30 + 6 * len(shown)
    return "".join(parts), y + 18


def _series(series: Sequence[str], item: Bar) -> str:
    return f" ({series[item.series]})" if len(series) > 1 else ""


def figure(title: str, values: str, height: int, content: str) -> str:
    """An SVG of WIDTH x ``height`` with ``values`` as its text alternative, and its caption."""
    inner = tag("title", text(title)) + tag("desc", text(values)) + content
    chart = tag("svg", inner, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=f"{title}. {values}")
    return tag("figure", chart + tag("figcaption", text(title)))

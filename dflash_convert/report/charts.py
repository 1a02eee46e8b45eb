"""Charts as inline SVG: no script, colours from the page's own variables, a text alternative in each.

Kept here rather than taken from a library: those for Python draw with scripts, or into styles of their own that neither
follow the page's light and dark nor its strict policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dflash_convert.report.markup import tag, text, void
from dflash_convert.text import percent, shorten

WIDTH = 380
BAR, GAP = 15, 7
MAX_BARS = 60
LABEL = 26  # characters of a label
LEGEND = 48  # characters of a series' name
SERIES = 8  # colours of the style sheet
TICKS = 4


class Bar(NamedTuple):
    """One bar: ``label`` beside it, ``value`` its length, ``shown`` that value in words, ``series`` its colour."""

    label: str
    value: float
    shown: str
    series: int = 0


class Scale(NamedTuple):
    """What a chart's values are: ``title``, where the axis ends (None: at the largest value), how a tick is written,
    and the value of a dashed line with its words."""

    title: str = ""
    top: float | None = None
    tick: Callable[[float], str] = "{:,.3g}".format
    line: tuple[float, str] | None = None


SHARE = Scale(top=1.0, tick=lambda value: percent(value, 0))


def bars(title: str, items: Sequence[Bar], axis: Scale = Scale(), series: Sequence[str] = ()) -> str:  # noqa: B008
    """Horizontal bars above their axis; a legend when there are several series."""
    items = items[:MAX_BARS]
    if not items:
        return ""
    highest = _top(axis, [item.value for item in items])
    left = min(170, 12 + 6 * max(len(shorten(item.label, LABEL)) for item in items))
    room = WIDTH - left - 62
    beyond = left + room + 5 if axis.line else 0.0  # a dashed line would run through figures at the bars' ends
    y, parts = 4, []
    for before, item in zip((None, *items[:-1]), items, strict=True):
        same = before is not None and before.label == item.label and before.series != item.series
        y += 0 if before is None else 2 if same else GAP
        length = max(1.0, room * min(max(item.value, 0.0) / highest, 1.0))
        if not same:
            parts.append(_text(shorten(item.label, LABEL), left - 6, y + 11, "label", "end"))
        parts.append(void("rect", x=left, y=y, width=round(length, 1), height=BAR, rx=2, class_=f"s{item.series}"))
        parts.append(_text(item.shown, round(max(left + length + 5, beyond), 1), y + 11, "value"))
        y += BAR
    grid, ticks = _grid(axis, highest, left, room, y + 5)
    end, y = _axis_title(axis, WIDTH / 2, y + 17)
    key, y = legend(series, y + 6)
    values = "; ".join(f"{item.label}{_series(series, item)}: {item.shown}" for item in items)
    return figure(title, values, y, grid + "".join(parts) + ticks + end + key, dashed(axis.line))


def _grid(axis: Scale, highest: float, left: float, room: float, bottom: int) -> tuple[str, str]:
    """Lines below the bars; their numbers and the dashed line above them."""
    lines, above = [], []
    for value in _ticks(highest):
        x = round(left + room * value / highest, 1)
        lines.append(void("line", x1=x, y1=0, x2=x, y2=bottom, class_="axis"))
        above.append(_text(axis.tick(value), x, bottom + 11, "label", "middle"))
    if axis.line and axis.line[0] <= highest:
        x = round(left + room * axis.line[0] / highest, 1)
        above.append(void("line", x1=x, y1=0, x2=x, y2=bottom, class_="average"))
    return "".join(lines), "".join(above)


def _ticks(highest: float) -> list[float]:
    """0 and round numbers up to ``highest``."""
    step = round_step(highest / TICKS)
    return [step * i for i in range(int(highest / step * 1.001) + 1)]


def round_step(rough: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)


def _top(axis: Scale, values: Sequence[float]) -> float:
    return axis.top or max(*values, axis.line[0] if axis.line else 0.0, 0.0) or 1.0


def _text(words: str, x: float, y: float, kind: str, anchor: str | None = None) -> str:
    return tag("text", text(words), x=x, y=y, class_=kind, text_anchor=anchor)


def _axis_title(axis: Scale, x: float, y: int) -> tuple[str, int]:
    return (_text(axis.title, x, y + 14, "label", "middle"), y + 20) if axis.title else ("", y + 2)


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


def figure(title: str, values: str, height: int, content: str, note: str = "") -> str:
    """An SVG of WIDTH x ``height`` with ``values`` as its text alternative, below its title and a soft ``note``."""
    inner = tag("title", text(title)) + tag("desc", text(values)) + content
    chart = tag("svg", inner, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=f"{title}. {values}")
    more = tag("span", text(f"({note})"), class_="soft") if note else ""
    return tag("figure", tag("figcaption", f"{text(title)} {more}".strip()) + chart)


def dashed(line: tuple[float, str] | None) -> str:
    """What a dashed line is, for a figure's note: there it cannot cover anything."""
    return f"dashed: {line[1]}" if line else ""

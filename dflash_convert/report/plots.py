"""Plots over two axes as inline SVG: points with a range, and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dflash_convert.report.charts import WIDTH, dashed, figure, legend, round_step
from dflash_convert.report.markup import tag, text, void
from dflash_convert.text import percent as as_percent

LEFT, RIGHT, TOP, BOTTOM = 44, WIDTH - 20, 24, 214  # of the plotted area
TICKS = 5
DOT = 4.5
CHARACTER = 6.2  # width of a digit of a label
AROUND = ((9, 4, "start"), (-9, 4, "end"), (0, -9, "middle"), (0, 17, "middle"), (9, 15, "start"), (9, -7, "start"))


class Point(NamedTuple):
    """``label`` is written beside it, ``low`` to ``high`` its range along y."""

    label: str
    x: float
    y: float
    low: float
    high: float
    series: int
    said: str


class Curve(NamedTuple):
    """``values[i]`` at x = ``first`` + i; ``points`` are single values by x; ``guess`` draws it broken."""

    name: str
    values: Sequence[float]
    series: int
    points: Sequence[tuple[int, float]] = ()
    guess: bool = False
    first: int = 1


class Axis:
    """From a value to a place between two ends, with round ticks."""

    def __init__(self, values: Sequence[float], ends: tuple[float, float], zero: bool) -> None:
        low, high = (0.0 if zero else min(values)), max(values)
        room = (high - low) or abs(high) or 1.0
        self.step = round_step(room * (1.0 if zero else 1.3) / TICKS)
        self.low = math.floor((low - (0 if zero else room * 0.1)) / self.step) * self.step
        self.low = max(self.low, 0.0)
        self.high = max(math.ceil((high + (0 if zero else room * 0.1)) / self.step) * self.step, self.low + self.step)
        self.ends = ends

    def at(self, value: float) -> float:
        first, last = self.ends
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(first + (last - first) * share, 1)

    @property
    def ticks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [self.low + self.step * i for i in range(count + 1)]


def scatter(title: str, points: Sequence[Point], x_name: str, y_name: str) -> str:
    """Points by number, each with the range of its y; ``title`` says where the numbers are explained."""
    if not points:
        return ""
    across = Axis([p.x for p in points], (LEFT, RIGHT), zero=False)
    up = Axis([value for p in points for value in (p.y, p.high)], (BOTTOM, TOP), zero=True)
    parts = [_grid(across, up, x_name, y_name)]
    dots = [(across.at(p.x), up.at(p.y)) for p in points]
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots]
    for point, (x, y) in zip(points, dots, strict=True):
        if point.high > point.low:
            ends = {"y1": up.at(point.low), "y2": up.at(point.high)}
            parts.append(void("line", x1=x, x2=x, class_=f"range s{point.series}", **ends))
        parts.append(void("circle", cx=x, cy=y, r=DOT, class_=f"s{point.series}"))
        parts.append(_beside(point.label, x, y, taken))
    return figure(title, "; ".join(p.said for p in points), BOTTOM + 38, "".join(parts))


def _beside(label: str, x: float, y: float, taken: list[tuple[float, float, float, float]]) -> str:
    """The label where nothing else is, if there is such a place next to the dot."""
    width = CHARACTER * len(label)
    places: list[tuple[int, int, tuple[float, float, float, float], tuple[float, float, str]]] = []
    for dx, dy, anchor in AROUND:
        left = x + dx - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        box = (left, y + dy - 9, left + width, y + dy + 1)
        clash = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
        outside = left < LEFT or box[2] > WIDTH or box[1] < 0
        places.append((clash + 9 * outside, len(places), box, (x + dx, y + dy, anchor)))
    _, _, box, (at, height, anchor) = min(places)
    taken.append(box)
    return tag("text", text(label), x=round(at, 1), y=round(height, 1), text_anchor=anchor)


def curves(
    title: str,
    found: Sequence[Curve],
    x_name: str,
    y_name: str,
    *,
    percent: bool = False,
    line: tuple[float, str] | None = None,
    labels: Sequence[str] = (),
) -> str:
    """Curves over whole numbers, with a legend; ``percent``: shares from 0 to 1; ``line`` a dashed one at this value,
    and what it is; ``labels`` stand for the numbers 1, 2 …"""
    found = [each for each in found if each.values]
    if not found:
        return ""
    last = max(each.first + len(each.values) - 1 for each in found)
    first = min(each.first for each in found)
    across = Axis([first, max(last, first + 1)], (LEFT + 8, RIGHT), zero=False)
    across.low, across.high, across.step = first, max(last, first + 1), max(1, -(-(last - first) // 8))
    values = [v for each in found for v in (*each.values, *(y for _, y in each.points))]
    up = Axis([1.0] if percent else values, (BOTTOM, TOP), zero=True)
    parts = [_grid(across, up, x_name, y_name, percent, labels)]
    if line:
        parts.append(void("line", x1=LEFT, y1=up.at(line[0]), x2=RIGHT, y2=up.at(line[0]), class_="average"))
    names = [""] * (1 + max(each.series for each in found))
    said = []
    for each in found:
        places = [(across.at(each.first + i), up.at(v)) for i, v in enumerate(each.values)]
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(void("polyline", points=path, class_=f"s{each.series}" + " guess" * each.guess))
        dots = [(across.at(x), up.at(y)) for x, y in each.points] if each.guess else places
        parts += [void("circle", cx=x, cy=y, r=2.8, class_=f"s{each.series}") for x, y in dots]
        names[each.series] = each.name
        said.append(f"{each.name}: " + ", ".join(_named(each, labels, percent)))
    key, height = legend(names, BOTTOM + 44)
    return figure(title, "; ".join(said), height, "".join(parts) + key, dashed(line))


def _named(curve: Curve, labels: Sequence[str], percent: bool) -> list[str]:
    """Values in words, with their labels where there are such."""
    shown = [_shown(value, percent) for value in curve.values]
    return [f"{label}: {value}" for label, value in zip(labels, shown, strict=True)] if labels else shown


def _grid(across: Axis, up: Axis, x_name: str, y_name: str, percent: bool = False, labels: Sequence[str] = ()) -> str:
    parts = []
    for value in up.ticks:
        y = up.at(value)
        parts.append(void("line", x1=LEFT, y1=y, x2=RIGHT, y2=y, class_="axis"))
        parts.append(tag("text", text(_shown(value, percent)), x=LEFT - 5, y=y + 4, class_="label", text_anchor="end"))
    for value in across.ticks:
        words = labels[round(value) - 1] if labels else _shown(value)
        parts.append(tag("text", text(words), x=across.at(value), y=BOTTOM + 15, class_="label", text_anchor="middle"))
    parts.append(tag("text", text(x_name), x=RIGHT, y=BOTTOM + 30, class_="label", text_anchor="end"))
    parts.append(tag("text", text(y_name), x=4, y=11, class_="label"))
    return "".join(parts)


def _shown(value: float, share: bool = False) -> str:
    return as_percent(value, 0) if share else f"{value:,.6g}"

"""How far a long step is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import MutableMapping
from typing import Any

from tqdm import tqdm

from dflash_convert.cli.terminal import on_terminal, width
from dflash_convert.text import duration, percent, shorten, size
from dflash_convert.watching import Watch

EVERY = 10.0  # seconds between the lines that stand for a bar
SHORTEST = 10  # characters of the bar itself
ITEM, BRIEF = 24, 6  # characters of the name of what is being done, and fewest worth showing
PHASE = 12  # fewest characters of the step's name
BYTES = "bytes"
LARGE = ("weights", BYTES)


class _Bar(tqdm):  # type: ignore[misc]  # it has no stubs
    """``phase:  40 % |####    | 4/10 requests, 2.1 s each, 12.6 s left, what is being done``, in the columns there are:
    the pace gives way first, then what is being done, then the phase's name."""

    phase = doing = ""
    count_unit = ""

    @property
    def format_dict(self) -> MutableMapping[str, Any]:
        found: MutableMapping[str, Any] = super().format_dict
        if not self.disable:
            found["head"], found["tail"] = self._around(found["elapsed"], found["ncols"])
        return found

    def _around(self, seconds: float, columns: int | None) -> tuple[str, str]:
        """What stands before and behind the bar."""
        done, total = self.n, self.total
        share = f": {percent(done / total, 0):>5} "
        counts = f" {_count(done, self.count_unit)}/{_count(total, self.count_unit)}{_word(self.count_unit)}"
        left = ", ".join(["", *_left(done, total, seconds)])
        pace = ", ".join(["", *_pace(done, seconds, self.count_unit)])
        doing = f", {shorten(self.doing, ITEM)}" if self.doing else ""
        if columns is None:
            return f"{self.phase}{share}", counts + pace + left + doing
        free = columns - len(f"{self.phase}{share}||{counts}{left}") - SHORTEST
        if len(pace) + len(doing) > free:
            pace = ""
        if len(doing) > free:
            doing = f", {shorten(self.doing, free - 2)}" if free - 2 >= BRIEF else ""
        if free < 0:  # the unit goes without saying
            free += len(_word(self.count_unit))
            counts = counts.removesuffix(_word(self.count_unit))
        phase = shorten(self.phase, max(len(self.phase) + min(free, 0), PHASE))
        return f"{phase}{share}", counts + pace + left + doing


class Progress(Watch):
    """One phase: ``total`` in ``unit``, such as weights, bytes or requests. Use it as a context manager.

    Where stderr is no terminal a line is printed every EVERY seconds, so that a log shows that something happens and
    a short run says nothing. A quiet call shows neither.
    """

    def __init__(self, phase: str, unit: str, total: int | None = None, *, quiet: bool = False) -> None:
        self._phase, self._unit, self._quiet = phase, unit, quiet
        self._bar: _Bar | None = None
        self._item = ""
        self._said = time.monotonic()
        if total is not None:
            self.begin(total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, total: int, phase: str | None = None) -> None:
        """Start (again) at nothing of ``total``."""
        self.close()
        self._phase, self._said = phase or self._phase, time.monotonic()
        self._bar = _Bar(
            total=total,
            bar_format="{head}|{bar}|{tail}",
            leave=False,
            ncols=width(err=True),
            dynamic_ncols=width(err=True) is None,
            file=sys.stderr if on_terminal(err=True) else _Nowhere(),
            disable=self._quiet or total <= 0,
            delay=1e-6,  # its first look comes when its names are there
        )
        self._bar.phase, self._bar.count_unit = self._phase, self._unit
        self._bar.refresh()

    def update(self, done: int = 1) -> None:
        """So much more is done."""
        if self._bar is not None and not self._bar.disable:
            if self._bar.n + done > self._bar.total:
                self._bar.total = self._bar.n + done  # work that was added on the way
            self._bar.update(done)
            self._line()

    def item(self, name: str) -> None:
        """What is being done now."""
        self._item = name
        if self._bar is not None:
            self._bar.doing = name
            self._bar.refresh()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self) -> None:
        now = time.monotonic()
        if on_terminal(err=True) or now - self._said < EVERY or self._bar is None:
            return
        self._said = now
        print(self.line(self._bar.n, self._bar.total, self._bar.format_dict["elapsed"]), file=sys.stderr, flush=True)  # noqa: T201

    def line(self, done: int, total: int, seconds: float) -> str:
        """The line that stands for a bar."""
        counts = " of ".join(_count(n, self._unit) for n in (done, total))
        item = [shorten(self._item, ITEM)] if self._item else []
        left = [f"about {each}" for each in _left(done, total, seconds)]
        return ", ".join([f"{self._phase}: {percent(done / total, 0)}", f"{counts}{_word(self._unit)}", *left, *item])


class _Nowhere:
    """Where a bar is drawn that nobody sees."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _count(n: float, unit: str) -> str:
    if unit == BYTES:
        return size(n)
    return str(tqdm.format_sizeof(n)) if unit in LARGE else str(n)


def _word(unit: str) -> str:
    """Behind a count; sizes have a unit of their own."""
    return "" if unit == BYTES else f" {unit}"


def _left(done: float, total: float, seconds: float) -> list[str]:
    """One part of a line, none while nothing is known."""
    return [f"{duration((total - done) * seconds / done)} left"] if done and seconds > 0 else []


def _pace(done: float, seconds: float, unit: str) -> list[str]:
    if not done or seconds <= 0:
        return []
    return [f"{_count(done / seconds, unit)}{_word(unit)}/s" if unit in LARGE else f"{duration(seconds / done)} each"]

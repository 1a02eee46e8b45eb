"""How far a long step is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from dflash_convert.cli.terminal import on_terminal, width
from dflash_convert.text import duration, shorten
from dflash_convert.watching import Watch

EVERY = 10.0  # seconds between the lines that stand for a bar
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} {rate_fmt}, {remaining} left{postfix}"
NARROW = 60  # columns below which what is being done is left out
ITEM = 24  # characters of its name


class Progress(Watch):
    """One phase: ``total`` in ``unit``, such as weights, bytes or requests. Use it as a context manager.

    Where stderr is no terminal a line is printed every EVERY seconds, so that a log shows that something happens and
    a short run says nothing. A quiet call shows neither.
    """

    def __init__(self, phase: str, unit: str, total: int | None = None, *, quiet: bool = False) -> None:
        self._phase, self._unit, self._quiet = phase, unit, quiet
        self._bar: tqdm[Any] | None = None
        self._item = ""
        self._said = time.monotonic()
        if total is not None:
            self.begin(total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, total: int, phase: str | None = None) -> None:
        """Start (again) at nothing of ``total``."""
        self.close()
        self._phase, self._said = phase or self._phase, time.monotonic()
        large = self._unit in ("weights", "bytes")
        self._bar = tqdm(
            total=total,
            desc=self._phase,
            unit=f" {self._unit}",
            unit_scale=large,
            smoothing=0.05,  # near the mean: requests take very different times
            bar_format=BAR,
            leave=False,
            ncols=width(err=True),
            dynamic_ncols=width(err=True) is None,
            file=sys.stderr if on_terminal(err=True) else _Nowhere(),
            disable=self._quiet or total <= 0,
        )

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
        if self._bar is not None and on_terminal(err=True) and (width(err=True) or 80) >= NARROW:
            self._bar.set_postfix_str(shorten(name, ITEM))

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
        rate = done / seconds if seconds > 0 else 0.0
        left = f", about {duration((total - done) / rate)} left" if rate else ""
        counts = " of ".join(_count(n, self._unit) for n in (done, total))
        item = f" ({shorten(self._item, ITEM)})" if self._item else ""
        return f"{self._phase}: {100 * done / total:.0f} %, {counts} {self._unit}{item}{left}"


class _Nowhere:
    """Where a bar is drawn that nobody sees."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _count(n: int, unit: str) -> str:
    return tqdm.format_sizeof(n) if unit in ("weights", "bytes") else str(n)

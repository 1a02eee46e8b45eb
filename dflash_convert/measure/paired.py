"""One side against another over the same prompts: how far the figure depends on which prompts were asked.

The spread of :mod:`dflash_convert.measure.speed` is that of repeated runs. This one draws the prompts anew, with
replacement, and asks how the ratio of the speeds comes out: a bootstrap whose draws a fixed seed decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dflash_convert.measure.speed import FASTER, MANY, NO_GAIN, SLOWER, Pass, Speed

DRAWS = 2000
LEVEL = 0.95
SEED = 1


@dataclass(frozen=True)
class Paired:
    """How many times as fast the second side is; ``low`` to ``high`` holds it for 95 % of the draws of prompts."""

    ratio: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        return self.low > 1

    @property
    def slower(self) -> bool:
        return self.high < 1


def paired(base: Sequence[Pass], other: Sequence[Pass]) -> Paired | None:
    """``other`` against ``base``; both answered the same prompts, every prompt counts with its median over the rounds.
    None for fewer prompts than anything can be drawn from, and for an engine that gives no times."""
    sides = [_medians(passes) for passes in (base, other)]
    count = len(sides[0][0])
    if count < MANY or not all(tokens.all() and (ms > 0).all() for tokens, ms in sides):
        return None
    draws = np.random.default_rng(SEED).integers(count, size=(DRAWS, count))
    whole = np.arange(count)[None]
    ratios = [_rate(sides[1], which) / _rate(sides[0], which) for which in (whole, draws)]
    low, high = np.quantile(ratios[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Paired(float(ratios[0][0]), float(low), float(high))


def cautious(speed: Speed, over_prompts: Paired | None) -> Speed:
    """No claim that other prompts of the same kind would take back."""
    wrong = over_prompts is not None and (
        (speed.gain == FASTER and not over_prompts.faster) or (speed.gain == SLOWER and not over_prompts.slower)
    )
    return replace(speed, gain=NO_GAIN) if wrong else speed


def _medians(passes: Sequence[Pass]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tokens and milliseconds of every prompt."""
    tokens = np.array([[s.tokens for s in done.samples] for done in passes], dtype=np.float64)
    ms = np.array([[s.ms for s in done.samples] for done in passes], dtype=np.float64)
    return np.median(tokens, axis=0), np.median(ms, axis=0)


def _rate(side: tuple[NDArray[np.float64], NDArray[np.float64]], which: NDArray[np.int64]) -> NDArray[np.float64]:
    """Tokens a millisecond over the prompts of each row."""
    tokens, ms = side
    total: NDArray[np.float64] = tokens[which].sum(axis=1) / ms[which].sum(axis=1)
    return total

"""From repeated times of the same requests to a speed-up with its spread, and to what may be claimed of it.

Two sides, the baseline and another, each answer the same prompts once a round. The figure is the median over the
rounds of (baseline's time a token) / (the other's time a token), all prompts of a round added up.

The spread is a 99.9 % interval around the mean of the logarithms (Student's t). Its noise is how far the rounds of
one side lie from each other, pooled over both sides: 2 (rounds - 1) degrees of freedom; three rounds can agree by
luck, so it is never less than half of what single requests scatter by. Every disturbance that comes and goes, and
every drift, therefore widens it; ``RESOLUTION`` is added, below which two starts of one engine differ for no
reason. The upper end is cut at ``limit``, which no drafting can exceed. Single stalls are
replaced by the prompt's usual time before that, and are told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

Gain = Literal["faster", "no gain", "slower", "disturbed", "not measured"]
FASTER: Gain = "faster"
NO_GAIN: Gain = "no gain"
SLOWER: Gain = "slower"
DISTURBED: Gain = "disturbed"
NOT_MEASURED: Gain = "not measured"
CLAIMS = (FASTER, NO_GAIN, SLOWER)  # those that come with a figure

MIN_ROUNDS = 3
MAX_ROUNDS = 20
RESOLUTION = 0.02
WIDE = 4.0  # a spread whose ends are this far apart says nothing, unless it lies on one side of 1
STALL = 2.0  # times the usual time of a request
CLEANED = 4  # at most one in so many requests of a pass is a stall; more is a slow pass, and stays as it is
MANY = 4  # prompts from which on no claim may rest on one of them
FLOOR = 0.5  # of the scatter of single requests, the least noise of a round
DRIFT = 0.1
# two-sided 99.9 % quantiles of Student's t by degrees of freedom, for 3 to 20 rounds
QUANTILES = {
    **{4: 8.610, 6: 5.959, 8: 5.041, 10: 4.587, 12: 4.318, 14: 4.140, 16: 4.015, 18: 3.922, 20: 3.850},
    **{22: 3.792, 24: 3.745, 26: 3.707, 28: 3.674, 30: 3.646, 32: 3.622, 34: 3.601, 36: 3.582, 38: 3.566},
}


@dataclass(frozen=True)
class Sample:
    """One request: tokens generated, and milliseconds for them."""

    tokens: int
    ms: float


@dataclass(frozen=True)
class Pass:
    """All requests of one side in one round, in the order of the prompts; ``at`` is its place in time."""

    at: int
    samples: tuple[Sample, ...]

    @property
    def rate(self) -> float:
        """Tokens per second over all requests."""
        ms = sum(s.ms for s in self.samples)
        return 1000 * sum(s.tokens for s in self.samples) / ms if ms > 0 else 0.0

    def only(self, prompts: Sequence[int]) -> Pass:
        return Pass(self.at, tuple(self.samples[i] for i in prompts))


@dataclass(frozen=True)
class Stall:
    """A request that took ``factor`` times its usual time; ``side`` 0 is the baseline, rounds and prompts from 0."""

    side: int
    round: int
    prompt: int
    factor: float


@dataclass(frozen=True)
class Speed:
    """One side against the baseline. ``speedup``, ``low`` and ``high`` are None unless ``gain`` is one of CLAIMS.

    ``measured`` and ``spread`` are the same numbers whether or not they may be shown. ``drift`` is how much slower
    (positive) the first passes ran than the last, None when they did not differ by a tenth.
    """

    gain: Gain
    measured: float
    spread: tuple[float, float]
    stalls: tuple[Stall, ...] = ()
    drift: float | None = None

    @property
    def claimed(self) -> bool:
        return self.gain in CLAIMS

    @property
    def speedup(self) -> float | None:
        return self.measured if self.claimed else None

    @property
    def low(self) -> float | None:
        return self.spread[0] if self.claimed else None

    @property
    def high(self) -> float | None:
        return self.spread[1] if self.claimed else None


def compare(base: Sequence[Pass], other: Sequence[Pass], limit: float | None = None) -> Speed:
    """The speed of ``other`` against ``base``, round by round: as many passes, of the same prompts.

    ``limit`` is the largest speed-up that can be (the mean accepted length); a larger one is a disturbed run.
    """
    if len(base) != len(other) or not base:
        raise ValueError("both sides need the same number of rounds, at least one")
    if not all(sample.ms > 0 and sample.tokens for done in (*base, *other) for sample in done.samples):
        return Speed(NOT_MEASURED, 0.0, (0.0, math.inf))  # an engine that gives no times
    stalls = (*_stalls(0, base), *_stalls(1, other))
    sides = [_cleaned(passes, [s for s in stalls if s.side == side]) for side, passes in enumerate((base, other))]
    measured = _ratio(sides)
    if len(base) < MIN_ROUNDS:
        return Speed(NOT_MEASURED, measured, (0.0, math.inf))
    low, high = _spread(sides)
    low, high = min(low, measured), max(high, measured)
    gain = _gain(measured, low, high, limit)
    if gain in (FASTER, SLOWER) and _rests_on_one(sides, gain):
        gain = DISTURBED
    if limit is not None and measured <= limit:
        high = min(high, limit)
    return Speed(gain, measured, (low, high), stalls, _drift(sides))


def _ratio(sides: Sequence[Sequence[Pass]]) -> float:
    base, other = sides
    return median(o.rate / b.rate for b, o in zip(base, other, strict=True))


def _gain(measured: float, low: float, high: float, limit: float | None) -> Gain:
    if limit is not None and measured > limit:
        return DISTURBED
    if low > 1:
        return FASTER
    if high < 1:
        return SLOWER
    return DISTURBED if high > WIDE * low else NO_GAIN


def _rests_on_one(sides: Sequence[Sequence[Pass]], gain: Gain) -> bool:
    """Whether leaving one prompt out takes the difference away: a request disturbed in every round."""
    count = len(sides[0][0].samples)
    if count < MANY:
        return False
    for left_out in range(count):
        rest = [i for i in range(count) if i != left_out]
        found = _ratio([[done.only(rest) for done in passes] for passes in sides])
        if (found <= 1 + RESOLUTION) if gain == FASTER else (found >= 1 - RESOLUTION):
            return True
    return False


def _spread(sides: Sequence[Sequence[Pass]]) -> tuple[float, float]:
    """Ends of the interval of the ratio."""
    logs = [[math.log(done.rate) for done in passes] for passes in sides]
    rounds, means = len(logs[0]), [fmean(side) for side in logs]
    freedom = 2 * rounds - 2
    squares = sum((x - mean) ** 2 for side, mean in zip(logs, means, strict=True) for x in side)
    least = max(_scatter(passes) for passes in sides) * max(FLOOR, len(sides[0][0].samples) ** -0.5)
    noise = max(math.sqrt(squares / freedom), least)
    quantile = QUANTILES[min(freedom, max(QUANTILES))]
    half = quantile * noise * math.sqrt(2 / rounds) + math.log1p(RESOLUTION)
    centre = means[1] - means[0]
    return math.exp(max(centre - half, -700.0)), math.exp(min(centre + half, 700.0))


def _times(passes: Sequence[Pass]) -> list[list[float]]:
    """Milliseconds a token, by round and prompt."""
    return [[s.ms / s.tokens for s in done.samples] for done in passes]


def _usual(times: Sequence[Sequence[float]]) -> list[float]:
    """Each prompt's median over the rounds."""
    return [median(column) for column in zip(*times, strict=True)]


def _level(row: Sequence[float], usual: Sequence[float]) -> float:
    """How many times its usual time a typical request of one pass took."""
    return median(x / u for x, u in zip(row, usual, strict=True))


def _stalls(side: int, passes: Sequence[Pass]) -> list[Stall]:
    if len(passes) < MIN_ROUNDS:
        return []
    times = _times(passes)
    usual, found = _usual(times), []
    for number, row in enumerate(times):
        level = _level(row, usual)
        factors = [x / (u * level) for x, u in zip(row, usual, strict=True)]
        slow = [Stall(side, number, i, factor) for i, factor in enumerate(factors) if factor > STALL]
        found += slow if len(slow) <= len(row) // CLEANED else []
    return found


def _cleaned(passes: Sequence[Pass], stalls: Sequence[Stall]) -> list[Pass]:
    """The passes with stalled requests at their usual time."""
    factors = {(s.round, s.prompt): s.factor for s in stalls}
    return [
        Pass(p.at, tuple(Sample(s.tokens, s.ms / factors.get((number, i), 1.0)) for i, s in enumerate(p.samples)))
        for number, p in enumerate(passes)
    ]


def _scatter(passes: Sequence[Pass]) -> float:
    """Standard deviation of the logarithm of single times, apart from what prompts and rounds have in common."""
    rows = [[math.log(x) for x in row] for row in _times(passes)]
    freedom = (len(rows) - 1) * (len(rows[0]) - 1)
    if not freedom:
        return 0.0
    prompts, rounds = [fmean(column) for column in zip(*rows, strict=True)], [fmean(row) for row in rows]
    every = fmean(rounds)
    pairs = zip(rows, rounds, strict=True)
    squares = sum((x - p - r + every) ** 2 for row, r in pairs for x, p in zip(row, prompts, strict=True))
    return math.sqrt(squares / freedom)


def _drift(sides: Sequence[Sequence[Pass]]) -> float | None:
    """The first third of all passes in time against the last."""
    levels: list[tuple[int, float]] = []
    for passes in sides:
        times = _times(passes)
        usual = _usual(times)
        levels += [(done.at, math.log(_level(row, usual))) for done, row in zip(passes, times, strict=True)]
    levels.sort()
    third = max(len(levels) // 3, 1)
    change = fmean(level for _, level in levels[:third]) - fmean(level for _, level in levels[-third:])
    return math.expm1(change) if abs(change) > math.log1p(DRIFT) else None

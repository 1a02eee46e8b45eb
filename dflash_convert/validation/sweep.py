"""Draft lengths side by side: the same few requests with every n-max, once a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dflash_convert.engine.trace import mean_length, rate
from dflash_convert.measure.speed import DISTURBED, FASTER, MIN_ROUNDS, NOT_MEASURED
from dflash_convert.validation import gain
from dflash_convert.validation.gain import Timed
from dflash_convert.validation.result import PromptResult, Sweep, SweepPoint

REQUESTS = 6  # of the main run, evenly spread
TIE = 0.02  # speeds this close (a fraction) count as equal, and the smaller n-max wins


@dataclass(frozen=True)
class Tried:
    """One n-max: the results of its first round, and its passes beside the baseline's."""

    n_max: int
    rows: tuple[PromptResult, ...]
    timed: Timed


def chosen(count: int) -> tuple[int, ...]:
    """Which of ``count`` requests are swept."""
    few = min(count, REQUESTS)
    return tuple(i * (count - 1) // max(few - 1, 1) for i in range(few))


def choose(tried: Sequence[Tried]) -> Sweep:
    """The points, and the n-max to use: the smallest within TIE of the fastest."""
    points = [_point(one) for one in tried]
    fastest = max(p.tokens_per_second for p in points)
    best = min((p for p in points if p.tokens_per_second >= (1 - TIE) * fastest), key=lambda p: p.n_max)
    measured = len(tried[0].timed.base) >= MIN_ROUNDS and best.gain not in (DISTURBED, NOT_MEASURED)
    winner = next(one for one in tried if one.n_max == best.n_max)
    return Sweep(
        points=tuple(points),
        recommended=best.n_max,
        pays=best.gain == FASTER if measured else None,
        clear=all(_beats(winner, one) for one in tried if one is not winner) if measured else None,
        prompts=len(tried[0].timed.names),
    )


def _point(one: Tried) -> SweepPoint:
    figures = [row.figures for row in one.rows]
    drafted, accepted = sum(f.drafted for f in figures), sum(f.accepted for f in figures)
    length = mean_length(accepted, sum(f.steps for f in figures))
    found = gain.compare(one.timed, length)
    rates = [rate(sum(t.generated for t in row), sum(t.generation_ms for t in row)) for row in one.timed.drafted]
    return SweepPoint(
        n_max=one.n_max,
        acceptance=round(accepted / drafted, 6) if drafted else 0.0,
        mean_length=round(length, 4),
        tokens_per_second=round(median(rates), 2),
        speedup=_rounded(found.speedup),
        low=_rounded(found.low),
        high=_rounded(found.high),
        gain=found.gain,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _beats(one: Tried, other: Tried) -> bool:
    """Whether ``one`` is faster than ``other`` beyond noise."""
    order = (other.timed.order[1], one.timed.order[1])
    both = Timed(one.timed.names, other.timed.drafted, one.timed.drafted, order)
    return gain.compare(both, None).gain == FASTER

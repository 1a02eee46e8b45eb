"""How fast a draft length will be, from one deep run and a few measured step times. Pure functions.

A step drafts n tokens, verifies them and yields one token more than it keeps. With ``curve[i - 1]`` the share of
steps that kept the draft at position i, a step at length n yields ``1 + sum(curve[:n])`` tokens: what the first n
positions keep does not depend on how many follow. (Runtimes draft a shorter block then, which is a little better:
measured 0.2 to 3.9 % above.) What a step costs is measured at a few lengths and lies on a line between neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_convert.contest.candidates import Candidate

PROBES = (1, 3, 7)  # 7 is the last length that one CUDA kernel verifies in one go


@dataclass(frozen=True)
class Prediction:
    """At draft length ``n``: tokens a step yields, milliseconds a step takes, speed against the target alone."""

    n: int
    length: float
    step_ms: float
    speedup: float


def length_at(curve: Sequence[float], n: int) -> float:
    """Tokens that a step of ``n`` drafts yields."""
    return 1 + sum(curve[:n])


def step_at(costs: Mapping[int, float], n: int) -> float:
    """Milliseconds of a step of ``n`` drafts, between (or beyond) the measured ``costs``."""
    known = sorted(costs)
    if n in costs:
        return costs[n]
    if len(known) == 1:
        return costs[known[0]]
    low = max((m for m in known if m < n), default=known[0])
    high = min((m for m in known if m > n), default=known[-1])
    if low >= high:  # beyond either end: the nearest two go on
        low, high = (known[0], known[1]) if n < known[0] else (known[-2], known[-1])
    slope = (costs[high] - costs[low]) / (high - low)
    return max(costs[low] + slope * (n - low), 0.0)


def predict(curve: Sequence[float], costs: Mapping[int, float], target_ms: float, cap: int) -> list[Prediction]:
    """Every draft length from 1 to ``cap``; ``target_ms`` is a token of the target alone."""
    found = []
    for n in range(1, cap + 1):
        length, step = length_at(curve, n), step_at(costs, n)
        found.append(Prediction(n, length, step, length * target_ms / step if step > 0 else 0.0))
    return found


def known(predictions: Mapping[str, Sequence[Prediction]], candidate: Candidate) -> Prediction | None:
    """The prediction for a candidate; None for a ``p-min`` and for tweaks, which no curve predicts."""
    own = predictions.get(candidate.name, ())
    return None if not own or candidate.p_min or candidate.tweaks else own[candidate.n_max - 1]


def probes(cap: int) -> tuple[int, ...]:
    """Lengths at which a step's cost is measured, the deepest first."""
    return (cap, *(n for n in reversed(PROBES) if n < cap))


def best(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest; of equal ones the shortest."""
    return max(predictions, key=lambda p: (p.speedup, -p.n))

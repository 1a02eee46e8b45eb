"""The second verdict: what the drafter gains on this machine, why, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from dflash_convert.engine.trace import Trace
from dflash_convert.measure import speed
from dflash_convert.measure.speed import (
    DISTURBED,
    FASTER,
    MIN_ROUNDS,
    NO_GAIN,
    NOT_MEASURED,
    SLOWER,
    Gain,
    Pass,
    Sample,
)
from dflash_convert.text import percent

if TYPE_CHECKING:
    from dflash_convert.validation.result import Sweep

MIN_TOKENS = 8  # an answer shorter than this is over too soon to be timed
NARROW = 1.2  # ends of a spread that are nearer to each other would not come much nearer with more rounds

Passes = Sequence[Sequence[Trace]]  # by round, then by prompt


@dataclass(frozen=True)
class Stalled:
    """A request that took ``factor`` times as long as in the other rounds; counted at its usual time."""

    drafted: bool
    round: int
    prompt: str
    factor: float


@dataclass(frozen=True)
class Round:
    """Tokens per second of both sides as they were measured, disturbed or not."""

    baseline_tokens_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class SpeedReport:
    """Drafted against not drafted, over ``rounds`` of the ``prompts`` whose answers are long enough to time.

    ``speedup`` is the median over the rounds, ``low`` to ``high`` its 99.9 % interval (how both are made:
    :mod:`dflash_convert.measure.speed`); all three are None when the gain is disturbed or not measured, and
    ``tokens_per_second`` too. ``limit`` is the mean accepted length, which no speed-up can exceed; ``attempts``
    how often the rounds were run because the first could not be right. ``drift``: how much slower (positive) the
    first runs were than the last. ``target_ms`` is what one token costs without a drafter, ``step_ms`` a step of
    drafting and verifying, ``draft_ms`` the drafter's part in it (None where the engine does not tell).
    """

    rounds: int
    prompts: int
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    tokens_per_second: float | None = None
    baseline_tokens_per_second: float | None = None
    limit: float | None = None
    attempts: int = 1
    passes: tuple[Round, ...] = ()
    stalls: tuple[Stalled, ...] = ()
    drift: float | None = None
    target_ms: float | None = None
    step_ms: float | None = None
    draft_ms: float | None = None
    reason: str = ""
    advice: str | None = None


@dataclass(frozen=True)
class Timed:
    """Traces of both sides, every round, in the order of ``names``; ``order[side][round]`` the place in time."""

    names: tuple[str, ...]
    base: Passes
    drafted: Passes
    order: tuple[tuple[int, ...], tuple[int, ...]]

    def kept(self) -> tuple[int, ...]:
        """Prompts that both sides answer at a length that can be timed, in every round."""
        rows = (*self.base, *self.drafted)
        return tuple(i for i in range(len(self.names)) if all(_timed(row[i]) for row in rows))

    def passes(self) -> tuple[list[Pass], list[Pass]]:
        kept = self.kept()
        made = []
        for rows, places in zip((self.base, self.drafted), self.order, strict=True):
            samples = [tuple(Sample(row[i].generated, row[i].generation_ms) for i in kept) for row in rows]
            made.append([Pass(at, found) for at, found in zip(places, samples, strict=True)])
        return made[0], made[1]


def _timed(trace: Trace) -> bool:
    return trace.generated >= MIN_TOKENS and trace.generation_ms > 0


def compare(timed: Timed, limit: float | None) -> speed.Speed:
    """What the rounds of a pair say; not measured when no answer is long enough."""
    if not timed.kept():
        return speed.Speed(NOT_MEASURED, 0.0, (0.0, 0.0))
    return speed.compare(*timed.passes(), limit)


def report(timed: Timed, found: speed.Speed, limit: float, attempts: int = 1) -> SpeedReport:
    """The figures and the reason; the advice needs what the other runs gave (:func:`advise`)."""
    kept = timed.kept()
    base, drafted = timed.passes() if kept else ([], [])
    rounds = tuple(Round(round(b.rate, 2), round(d.rate, 2)) for b, d in zip(base, drafted, strict=True))
    costs = _costs(timed, kept) if kept else (None, None, None)
    made = SpeedReport(
        rounds=len(timed.base),
        prompts=len(kept),
        limit=round(limit, 4),
        attempts=attempts,
        passes=rounds,
        stalls=tuple(
            Stalled(s.side == 1, s.round + 1, timed.names[kept[s.prompt]], round(s.factor, 2)) for s in found.stalls
        ),
        drift=None if found.drift is None else round(found.drift, 4),
        target_ms=costs[0],
        step_ms=costs[1],
        draft_ms=costs[2],
    )
    if found.claimed:
        made = replace(
            made,
            speedup=round(found.measured, 4),
            low=round(found.spread[0], 4),
            high=round(found.spread[1], 4),
            tokens_per_second=round(median(r.tokens_per_second for r in rounds), 2),
            baseline_tokens_per_second=round(median(r.baseline_tokens_per_second for r in rounds), 2),
        )
    return replace(made, reason=_reason(made, found, limit))


def unmeasured(reason: str, rounds: int) -> SpeedReport:
    return SpeedReport(rounds, 0, reason=reason)


def _costs(timed: Timed, kept: Sequence[int]) -> tuple[float, float | None, float | None]:
    """Milliseconds: a target's token, a step, the drafter's part of a step; medians over the rounds."""
    target = median(_sum(row, kept, "generation_ms") / _sum(row, kept, "generated") for row in timed.base)
    steps = [sum(max(row[i].generated - 1 - row[i].accepted, 1) for i in kept) for row in timed.drafted]
    step = median(_sum(row, kept, "generation_ms") / n for row, n in zip(timed.drafted, steps, strict=True))
    draft = None
    if all(row[i].draft_ms is not None for row in timed.drafted for i in kept):
        draft = median(_sum(row, kept, "draft_ms") / n for row, n in zip(timed.drafted, steps, strict=True))
    return round(target, 4), round(step, 4), None if draft is None else round(draft, 4)


def _sum(row: Sequence[Trace], kept: Sequence[int], name: str) -> float:
    return float(sum(getattr(row[i], name) for i in kept))


def why(found: speed.Speed, limit: float) -> str:
    """What is wrong with a disturbed measurement."""
    low, high = found.spread
    if found.measured > limit:
        return f"drafting cannot gain more than its mean length of {limit:.2f}, and more was measured"
    if low <= 1 <= high:
        return f"the rounds disagree too much ({low:.2f} to {high:.2f} x)"
    return "one prompt alone makes the difference"


def _reason(made: SpeedReport, found: speed.Speed, limit: float) -> str:
    if found.gain == NOT_MEASURED:
        if not made.prompts:
            return f"no answer of at least {MIN_TOKENS} tokens could be timed"
        return f"{made.rounds} of the {MIN_ROUNDS} rounds that a figure takes"
    again = f", measured {made.attempts} times" if made.attempts > 1 else ""
    if found.gain == DISTURBED:
        return f"{why(found, limit)}{again}: something else kept the machine busy"
    if made.target_ms is None or made.step_ms is None:
        return ""
    share = "" if made.draft_ms is None else f" ({made.draft_ms:.3g} of them the drafter's)"
    return (
        f"a step of drafting and verifying takes {made.step_ms:.3g} ms{share}, as long as "
        f"{made.step_ms / made.target_ms:.2f} tokens of the target alone ({made.target_ms:.3g} ms each), "
        f"and yields {limit:.2f} tokens"
    )


def advise(gain: Gain, made: SpeedReport, n_max: int, swept: Sweep | None = None) -> str | None:
    """The next thing to try with a pair that is not broken; None when it is faster already."""
    if gain == FASTER:
        return None
    if gain == NOT_MEASURED:
        return "leave out --quick, or give --rounds 3" if made.prompts else "give longer answers with --n-predict"
    if gain == DISTURBED:
        return "end other work on this machine, or give more --rounds, and validate again"
    if swept and swept.pays:
        return f"--spec-draft-n-max {swept.recommended}, which is faster than no drafter here"
    if gain == NO_GAIN and made.low is not None and made.high is not None and made.high > NARROW * made.low:
        return f"more rounds on a quiet machine narrow the spread: --rounds {min(2 * made.rounds, speed.MAX_ROUNDS)}"
    shorter = [point.gain for point in swept.points if point.n_max < n_max] if swept else []
    return _cheaper(made, 1 if SLOWER in shorter else n_max)


def _cheaper(made: SpeedReport, n_max: int) -> str:
    """What makes a step cheaper, by the part that costs most; ``n_max`` 1 cannot be made shorter."""
    alone = "run this target without a drafter on this machine"
    if made.draft_ms is not None and made.step_ms is not None and made.target_ms is not None:
        verify = made.step_ms - made.draft_ms
        if made.draft_ms > verify:
            return "the drafter takes most of a step: a smaller encoding of it (q4_0), or a faster device for it"
        if made.limit is not None and verify > made.limit * made.target_ms and n_max == 1:
            return f"even a drafter that costs nothing would not pay here: {alone}"
    if n_max > 1:
        return f"a shorter draft, which costs less to verify: --n-max {max(n_max // 2, 1)}; otherwise {alone}"
    return alone


def describe(gain: Gain, made: SpeedReport | None) -> str:
    """One line: ``slower: 0.40 x the speed without the drafter (0.36 to 0.45, 3 rounds of 12 prompts)``."""
    if made is None or made.speedup is None or made.low is None or made.high is None:
        return str(gain)
    over = f"{made.rounds} rounds of {made.prompts} prompt{'s' * (made.prompts != 1)}"
    noise = ", no difference beyond noise" if gain == NO_GAIN else ""
    return (
        f"{gain}: {made.speedup:.2f} x the speed without the drafter ({made.low:.2f} to {made.high:.2f}; {over}){noise}"
    )


def warnings(made: SpeedReport | None) -> list[str]:
    """Stalls and drift that the figure was kept clear of, or that widened its spread."""
    if made is None:
        return []
    found = []
    if made.stalls:
        worst = max(made.stalls, key=lambda s: s.factor)
        side = "with" if worst.drafted else "without"
        found.append(
            f"{len(made.stalls)} request{'s' * (len(made.stalls) != 1)} stalled and counted at the usual time; the "
            f"worst, {worst.prompt} {side} the drafter in round {worst.round}, took {worst.factor:.1f} times as long"
        )
    if made.drift is not None:
        change = percent(abs(made.drift), 0)
        slower = "slower than the last: it was warming up" if made.drift > 0 else "faster than the last"
        found.append(f"this machine changed its pace: the first runs were {change} {slower}")
    return found

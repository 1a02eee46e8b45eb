"""Find the settings that pay: predict from one deep run and a few step times, run the best few, confirm.

Engine starts are what costs: loading a real model takes a minute. An exhaustive search tries every depth and
``p-min`` in every round; this one starts the engine once without a drafter, once at each probe of the step time,
for the two ``p-min`` values at the predicted depth, and for a final contest of the few that are left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dflash_convert.contest import depth
from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.judge import Ruling, rule
from dflash_convert.contest.trial import Engines, Say, Store, Work, run
from dflash_convert.engine.trace import Trace, sum_positions
from dflash_convert.measure.speed import FASTER, MIN_ROUNDS
from dflash_convert.watching import UNSEEN, Watch

P_MINS = (0.5, 0.8)
CLOSE = 0.08  # settings this near the best take part in the final
FINALISTS = 5
MORE = 3  # times that a final too close to call is continued
WORTH = 0.02  # gain below which nobody needs to know
SHARE = 1 / 3  # of an exhaustive search's engine starts


@dataclass(frozen=True)
class Measured:
    """One run of one setting: tokens a step yields, milliseconds a step takes, speed against the target alone."""

    candidate: Candidate
    length: float
    step_ms: float
    speedup: float


@dataclass(frozen=True)
class Tuned:
    """``ruling`` is the final's; ``predictions`` by drafter name. ``starts`` of engines, of which an exhaustive search
    would have made ``exhaustive``. ``complete`` is false when the time was up first."""

    ruling: Ruling
    predictions: dict[str, tuple[depth.Prediction, ...]]
    measured: tuple[Measured, ...]
    target_ms: float
    starts: int
    exhaustive: int
    complete: bool = True

    @property
    def best(self) -> Candidate:
        return self.ruling.winner.candidate if self.ruling.pays else NOTHING


def tune(
    engines: Engines,
    drafters: Sequence[Candidate],
    work: Work,
    store: Store,
    say: Say = lambda _: None,
    seconds: float | None = None,
    rounds: int = MIN_ROUNDS,
    watch: Watch = UNSEEN,
) -> Tuned:
    """``drafters`` with any settings: depth and ``p-min`` are searched for each. ``seconds`` bounds the search; the
    final always runs."""
    until = None if seconds is None else time.monotonic() + seconds / 2
    search = _Search(engines, work, store, say, until, watch)
    target_ms = search.target_ms()
    for drafter in drafters:
        search.probe(drafter)
    for drafter in _promising(drafters, search.measured):
        search.refine(drafter, search.predictions[drafter.name])
    finalists = search.finalists()
    say(f"final: {', '.join(f'{c.name} ({c.settings})' for c in finalists)} against no drafter")
    candidates = (NOTHING, *finalists)
    every = sum(each.cap for each in drafters) * (1 + len(P_MINS)) * rounds + rounds
    book = run(engines, candidates, work, rounds, store, say, watch=watch)
    ruling = _fastest(rule(work.label, candidates, book, work))
    for _ in range(MORE):
        if not _open(ruling) or search.starts + book.starts + rounds * len(candidates) > every * SHARE:
            break
        say("too close to call: more rounds")
        book = run(engines, candidates, work, rounds, store, say, book, watch)
        ruling = _fastest(rule(work.label, candidates, book, work))
    return Tuned(
        ruling,
        search.predictions,
        tuple(search.measured),
        target_ms,
        search.starts + book.starts,
        every,
        not search.late,
    )


def _fastest(ruling: Ruling) -> Ruling:
    """Settings of one drafter cost the same memory: of those that are equal within noise the fastest is the best
    guess, once drafting pays at all."""
    if not ruling.pays:
        paying = [s for s in ruling.standings if s.speed is not None and s.speed.gain == FASTER]
        return replace(ruling, winner=max(paying, key=lambda s: s.tokens_per_second)) if paying else ruling
    best = [s for s in ruling.standings if s.best and s.candidate.drafter == ruling.winner.candidate.drafter]
    return replace(ruling, winner=max(best, key=lambda s: s.tokens_per_second))


def _open(ruling: Ruling) -> bool:
    """Whether the medians say that drafting pays and the spread does not."""
    return not ruling.pays and any(s.speed is not None and s.speed.measured > 1 + WORTH for s in ruling.standings)


def _promising(drafters: Sequence[Candidate], measured: Sequence[Measured]) -> list[Candidate]:
    """Successive halving: of several drafters the better half is looked at closer."""
    top = {d.name: max(m.speedup for m in measured if m.candidate.name == d.name) for d in drafters}
    ranked = sorted(drafters, key=lambda d: -top[d.name])
    return ranked[: max(1, (len(ranked) + 1) // 2)]


class _Search:
    """What was measured so far, one pass a setting."""

    def __init__(self, engines: Engines, work: Work, store: Store, say: Say, until: float | None, watch: Watch) -> None:
        self.engines, self.work, self.store, self.say, self.until = engines, work, store, say, until
        self.watch = watch
        self.measured: list[Measured] = []
        self.predictions: dict[str, tuple[depth.Prediction, ...]] = {}
        self.starts = 0
        self.late = False
        self._target_ms = 0.0

    def target_ms(self) -> float:
        """A token without a drafter."""
        traces = self._run(NOTHING)
        self._target_ms = median(t.generation_ms / t.generated for t in traces if t.generated)
        return self._target_ms

    def probe(self, drafter: Candidate) -> None:
        """The deepest run's acceptance by position, and what a step costs at a few lengths."""
        costs: dict[int, float] = {}
        curve: tuple[float, ...] = ()
        for n in depth.probes(drafter.cap):
            traces = self._run(replace(drafter, n_max=n, p_min=None))
            costs[n] = _step_ms(traces)
            curve = curve or _curve(traces, n)
            self._add(replace(drafter, n_max=n, p_min=None), traces)
        self.predictions[drafter.name] = tuple(depth.predict(curve, costs, self._target_ms, drafter.cap))

    def refine(self, drafter: Candidate, predictions: Sequence[depth.Prediction]) -> None:
        """The predicted best and its neighbours, then ``p-min`` at the best that was measured."""
        top = depth.best(predictions)
        known = {m.candidate.n_max for m in self.measured if m.candidate.name == drafter.name}
        for n in (top.n, top.n - 1, top.n + 1):
            if 1 <= n <= drafter.cap and n not in known and self._time_left():
                self._measure(replace(drafter, n_max=n, p_min=None))
        own = [m for m in self.measured if m.candidate.name == drafter.name]
        best = max(own, key=lambda m: m.speedup).candidate
        deeper = min(drafter.cap, max(best.n_max, 2 * best.n_max))
        for n, p_min in ((best.n_max, P_MINS[0]), (deeper, P_MINS[0]), (deeper, P_MINS[1])):
            if self._time_left():
                self._measure(replace(drafter, n_max=n, p_min=p_min))

    def finalists(self) -> tuple[Candidate, ...]:
        """The best few, each setting once, that are near the best."""
        ranked = sorted(self.measured, key=lambda m: (-self._score(m), m.candidate.n_max))
        near = [m.candidate for m in ranked if self._score(m) >= (1 - CLOSE) * self._score(ranked[0])]
        return tuple(dict.fromkeys(near))[:FINALISTS]

    def _score(self, one: Measured) -> float:
        """Measured speed, half pulled to the prediction, which rests on more than one pass."""
        predicted = self.predicted(one.candidate)
        return one.speedup if predicted is None else (one.speedup * predicted.speedup) ** 0.5

    def predicted(self, candidate: Candidate) -> depth.Prediction | None:
        """None for a ``p-min``, which no curve predicts."""
        known = self.predictions.get(candidate.name)
        return None if known is None or candidate.p_min else known[candidate.n_max - 1]

    def _measure(self, candidate: Candidate) -> None:
        if all(m.candidate != candidate for m in self.measured):
            self._add(candidate, self._run(candidate))

    def _add(self, candidate: Candidate, traces: Sequence[Trace]) -> None:
        steps, step_ms = sum(_steps(t) for t in traces), _step_ms(traces)
        length = sum(t.generated - 1 for t in traces) / steps
        speedup = self._target_ms * length / step_ms if step_ms else 0.0
        self.measured.append(Measured(candidate, length, step_ms, speedup))

    def _run(self, candidate: Candidate) -> tuple[Trace, ...]:
        book = run(self.engines, (candidate,), self.work, 1, self.store, self.say, watch=self.watch)
        self.starts += book.starts
        return book.traces(0)

    def _time_left(self) -> bool:
        self.late = self.late or (self.until is not None and time.monotonic() > self.until)
        return not self.late


def _step_ms(traces: Sequence[Trace]) -> float:
    """The median of the answers: a stall in one of them is no cost of a step."""
    return median(t.generation_ms / _steps(t) for t in traces)


def _steps(trace: Trace) -> int:
    """Forward passes of the target behind the first token."""
    return max(trace.generated - 1 - trace.accepted, 1)


def _curve(traces: Sequence[Trace], n: int) -> tuple[float, ...]:
    """Share of steps that kept position i; from the overall acceptance where the engine does not tell by position."""
    steps = sum(t.known_steps for t in traces)
    positions = sum_positions(t.accepted_per_position if t.drafted else () for t in traces)
    if positions and steps:
        return tuple(count / steps for count in positions)
    length = sum(t.accepted for t in traces) / steps if steps else 0.0
    return _geometric(length, n)


def _geometric(length: float, n: int) -> tuple[float, ...]:
    """The falling curve of n positions that sums to ``length``."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        total = sum(middle**i for i in range(1, n + 1))
        low, high = (middle, high) if total < length else (low, middle)
    return tuple(low**i for i in range(1, n + 1))

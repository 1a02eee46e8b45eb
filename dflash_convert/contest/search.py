"""What a search has measured so far: one pass a setting, each an engine start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from dflash_convert.contest import depth
from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.trial import Book, Engines, Say, Store, Work, run
from dflash_convert.contest.tweaks import Tweak
from dflash_convert.engine.trace import Trace, sum_positions
from dflash_convert.watching import Watch

P_MINS = (0.5, 0.8)
CLOSE = 0.08  # settings this near the best take part in the final
IMPOSSIBLE = 0.1  # above the tokens a step yields; below that it is noise
AGAIN = 2  # times that a disturbed run of the target alone is made again
HELPS = 0.0  # gain of a tweak by which it is worth combining with others


@dataclass(frozen=True)
class Measured:
    """One run of one setting: tokens a step yields, milliseconds a step takes, speed against the target alone."""

    candidate: Candidate
    length: float
    step_ms: float
    speedup: float


class Search:
    """What was measured so far, one pass a setting."""

    def __init__(self, engines: Engines, work: Work, store: Store, say: Say, until: float | None, watch: Watch) -> None:
        self.engines, self.work, self.store, self.say, self.until = engines, work, store, say, until
        self.watch = watch
        self.measured: list[Measured] = []
        self.predictions: dict[str, tuple[depth.Prediction, ...]] = {}
        self.starts = 0
        self.late = False
        self.seconds: float | None = None  # of one start with its answers
        self.target_ms = 0.0  # a token without a drafter
        self._base = Book()

    def begin(self) -> None:
        """The target alone; the time that this start takes is that of all."""
        began = time.monotonic()
        self._base = self._run(NOTHING, self._base)
        self.seconds = time.monotonic() - began if self.starts else None
        self.target_ms = min(_token_ms(done.traces) for done in self._base.passes[0].values())

    def steady(self) -> None:
        """No setting can be faster than a step yields tokens: where one seems to be, the run of the target alone was
        disturbed. It is made again, and the faster one holds."""
        for _ in range(AGAIN):
            if all(m.speedup <= m.length * (1 + IMPOSSIBLE) for m in self.measured):
                return
            self.say("a speed-up that cannot be: the run without a drafter was disturbed, and is made again")
            before = self.target_ms
            self.begin()
            change = self.target_ms / before
            self.measured = [replace(m, speedup=m.speedup * change) for m in self.measured]
            self.predictions = {
                name: tuple(replace(p, speedup=p.speedup * change) for p in known)
                for name, known in self.predictions.items()
            }

    def probe(self, drafter: Candidate) -> None:
        """The deepest run's acceptance by position, and what a step costs at a few lengths."""
        costs: dict[int, float] = {}
        curve: tuple[float, ...] = ()
        for n in depth.probes(drafter.cap):
            traces = self._run(replace(drafter, n_max=n, p_min=None)).traces(0)
            costs[n] = _step_ms(traces)
            curve = curve or _curve(traces, n)
            self._add(replace(drafter, n_max=n, p_min=None), traces)
        self.predictions[drafter.name] = tuple(depth.predict(curve, costs, self.target_ms, drafter.cap))

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

    def turn(self, tweaks: Sequence[Tweak]) -> None:
        """Every tweak alone at the best setting so far, then those that help together."""
        if not tweaks:
            return
        base = self.best()
        helpful: dict[str, tuple[float, Tweak]] = {}
        for tweak in tweaks:
            if not self._time_left():
                return
            gain = self._measure(base.candidate.tweaked(tweak)).speedup / base.speedup
            if gain > max(1 + HELPS, helpful.get(tweak.knob, (0.0, tweak))[0]):
                helpful[tweak.knob] = gain, tweak
        if len(helpful) > 1 and self._time_left():
            together = base.candidate
            for _, tweak in helpful.values():
                together = together.tweaked(tweak)
            self._measure(together)

    def best(self) -> Measured:
        return max(self.measured, key=lambda m: (self._score(m), -m.candidate.n_max))

    def finalists(self, most: int) -> tuple[Candidate, ...]:
        """The best few, each setting once, that are near the best; the best without tweaks is among them, for one
        pass is easily lucky."""
        ranked = sorted(self.measured, key=lambda m: (-self._score(m), m.candidate.n_max))
        near = [m.candidate for m in ranked if self._score(m) >= (1 - CLOSE) * self._score(ranked[0])]
        chosen = list(dict.fromkeys(near))[:most]
        plain = next((m.candidate for m in ranked if not m.candidate.tweaks), None)
        if most > 1 and plain is not None and plain not in chosen:
            chosen = [*chosen[: most - 1], plain]
        return tuple(chosen)

    def _score(self, one: Measured) -> float:
        """Measured speed, half pulled to the prediction, which rests on more than one pass."""
        predicted = self.predicted(one.candidate)
        return one.speedup if predicted is None else (one.speedup * predicted.speedup) ** 0.5

    def predicted(self, candidate: Candidate) -> depth.Prediction | None:
        return depth.known(self.predictions, candidate)

    def _measure(self, candidate: Candidate) -> Measured:
        found = next((m for m in self.measured if m.candidate == candidate), None)
        return found or self._add(candidate, self._run(candidate).traces(0))

    def _add(self, candidate: Candidate, traces: Sequence[Trace]) -> Measured:
        steps, step_ms = sum(_steps(t) for t in traces), _step_ms(traces)
        length = sum(t.generated - 1 for t in traces) / steps
        speedup = self.target_ms * length / step_ms if step_ms else 0.0
        self.measured.append(Measured(candidate, length, step_ms, speedup))
        return self.measured[-1]

    def _run(self, candidate: Candidate, book: Book | None = None) -> Book:
        """One more pass."""
        before = book.starts if book else 0
        book = run(self.engines, (candidate,), self.work, 1, self.store, self.say, book, self.watch)
        self.starts += book.starts - before
        return book

    def _time_left(self) -> bool:
        self.late = self.late or (self.until is not None and time.monotonic() > self.until)
        return not self.late


def _token_ms(traces: Sequence[Trace]) -> float:
    return median(t.generation_ms / t.generated for t in traces if t.generated)


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

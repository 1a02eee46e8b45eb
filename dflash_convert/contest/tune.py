"""Find the settings that pay: predict from one deep run and a few step times, run the best few, confirm.

Engine starts are what costs: loading a real model takes a minute. An exhaustive search tries every depth and
``p-min`` in every round; this one starts the engine once without a drafter, once at each probe of the step time,
for the two ``p-min`` values at the predicted depth, for every tweak alone and those that help together, and for a final
contest of the few that are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dflash_convert.contest import depth
from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.judge import Ruling, Standing, rule
from dflash_convert.contest.search import P_MINS, Measured, Search
from dflash_convert.contest.trial import Engines, Say, Store, Work, run
from dflash_convert.contest.tweaks import Tweak
from dflash_convert.measure.paired import paired
from dflash_convert.measure.speed import FASTER, MIN_ROUNDS
from dflash_convert.watching import UNSEEN, Watch

FINALISTS = 5
MORE = 5  # times that a final too close to call is continued
WORTH = 0.02  # gain below which nobody needs to know
SHARE = 1 / 3  # of an exhaustive search's engine starts


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

    def predicted(self, candidate: Candidate) -> depth.Prediction | None:
        """None for what no curve predicts: a ``p-min``, tweaks."""
        return depth.known(self.predictions, candidate)

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
    tweaks: Callable[[Candidate], Sequence[Tweak]] = lambda _: (),
    watch: Watch = UNSEEN,
) -> Tuned:
    """``drafters`` with any settings: depth and ``p-min`` are searched for each, ``tweaks`` of the best are tried on
    it. ``seconds`` bounds the search; the final always runs."""
    until = None if seconds is None else time.monotonic() + seconds / 2
    search = Search(engines, work, store, say, until, watch)
    expected = _expected(drafters, len(tweaks(drafters[0])), rounds)
    say(f"about {expected} engine starts; the first tells how long each takes")
    search.begin()
    if search.seconds is not None:
        say(
            f"a start with its answers takes {search.seconds:.0f} s: about {_minutes(expected * search.seconds)} in all"
        )
    for drafter in drafters:
        search.probe(drafter)
    search.steady()
    for drafter in _promising(drafters, search.measured):
        search.refine(drafter, search.predictions[drafter.name])
    turned = tweaks(search.best().candidate)
    search.turn(turned)
    every = exhaustive(drafters, len(turned), rounds)
    left = int(every * SHARE) - search.starts
    finalists = search.finalists(min(max(left // rounds - 1, 1), FINALISTS))
    say(f"final: {', '.join(f'{c.name} ({c.settings})' for c in finalists)} against no drafter")
    candidates, searched = (NOTHING, *finalists), {m.candidate: m.speedup for m in search.measured}
    book = run(engines, candidates, work, rounds, store, say, watch=watch)
    ruling = _fastest(rule(work.label, candidates, book, work), searched)
    for _ in range(MORE):
        if not _open(ruling) or search.starts + book.starts + 2 * rounds > every * SHARE:
            break
        say("too close to call: more rounds of the fastest against no drafter")
        side = max(range(1, len(candidates)), key=lambda i: ruling.standings[i].tokens_per_second)
        candidates, book = (NOTHING, candidates[side]), book.of(0, side)
        book = run(engines, candidates, work, rounds, store, say, book, watch)
        ruling = _fastest(rule(work.label, candidates, book, work), searched)
    return Tuned(
        ruling,
        search.predictions,
        tuple(search.measured),
        search.target_ms,
        search.starts + book.starts,
        every,
        not search.late,
    )


def exhaustive(drafters: Sequence[Candidate], tweaks: int, rounds: int) -> int:
    """Engine starts of a search that tries every depth with every ``p-min`` in every round, then every tweak alone
    at the best of them. (Every tweak with every depth would be many times as many.)"""
    return sum(each.cap for each in drafters) * (1 + len(P_MINS)) * rounds + rounds + tweaks * rounds


def _expected(drafters: Sequence[Candidate], tweaks: int, rounds: int) -> int:
    """Engine starts, roughly: a round ends with the candidate that begins the next one."""
    closer = (len(drafters) + 1) // 2
    probes = sum(len(depth.probes(each.cap)) for each in drafters)
    trials = 1 + probes + 5 * closer + (tweaks + 1 if tweaks else 0)
    return trials + (FINALISTS + 1) * rounds - (rounds - 1)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _fastest(ruling: Ruling, searched: Mapping[Candidate, float]) -> Ruling:
    """Settings of one drafter cost the same memory: of those that are equal within noise the fastest is the best
    guess, once drafting pays at all. ``searched``: the speed of the search's own pass, one more of the same."""

    def speed(each: Standing) -> float:
        own: float = searched.get(each.candidate, 1.0) ** (1 / len(ruling.passes[0]))
        return _evidence(ruling, each) * own

    if not ruling.pays:
        paying = [s for s in ruling.standings if s.speed is not None and s.speed.gain == FASTER]
        return replace(ruling, winner=max(paying, key=speed)) if paying else ruling
    best = [s for s in ruling.standings if s.best and s.candidate.drafter == ruling.winner.candidate.drafter]
    return replace(ruling, winner=max(best, key=speed))


def _evidence(ruling: Ruling, each: Standing) -> float:
    """The speed of the final by every prompt's median, in which a stall does not count."""
    side = ruling.standings.index(each)
    pair = paired(ruling.passes[0], ruling.passes[side])
    return pair.ratio if pair is not None else each.speed.measured if each.speed is not None else 1.0


def _open(ruling: Ruling) -> bool:
    """Whether the medians say that drafting pays and the spread does not."""
    return not ruling.pays and any(s.speed is not None and s.speed.measured > 1 + WORTH for s in ruling.standings)


def _promising(drafters: Sequence[Candidate], measured: Sequence[Measured]) -> list[Candidate]:
    """Successive halving: of several drafters the better half is looked at closer."""
    top = {d.name: max(m.speedup for m in measured if m.candidate.name == d.name) for d in drafters}
    ranked = sorted(drafters, key=lambda d: -top[d.name])
    return ranked[: max(1, (len(ranked) + 1) // 2)]

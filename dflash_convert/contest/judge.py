"""From the passes of a contest to who won, as far as the spread allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.trial import Book, Work
from dflash_convert.engine.trace import Trace, mean_length, sum_positions
from dflash_convert.measure.paired import Paired, cautious, paired
from dflash_convert.measure.speed import FASTER, SLOWER, Pass, Speed, compare


@dataclass(frozen=True)
class Standing:
    """One candidate on one kind of work. ``speed`` is against no drafter (None for that one itself);
    ``tokens_per_second`` the median of the rounds, of all requests that run at a time; ``each_per_second`` what one of
    them gets; ``first_ms`` the mean time to the first token; ``taken_mib`` what the engine said of its memory.
    ``best``: none is faster beyond noise."""

    candidate: Candidate
    speed: Speed | None
    tokens_per_second: float
    drafted: int
    accepted: int
    length: float | None
    curve: tuple[float, ...]
    first_ms: float
    each_per_second: float
    taken_mib: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Versus:
    """The winner against one of the others, paired by prompt; ``beats``: faster over rounds and over prompts."""

    other: Candidate
    paired: Paired
    beats: bool


@dataclass(frozen=True)
class Ruling:
    """Standings in the order of the candidates, and the one to take: of the best the smallest, then the simplest.
    ``passes`` by standing."""

    label: str
    standings: tuple[Standing, ...]
    winner: Standing
    passes: tuple[tuple[Pass, ...], ...] = field(repr=False)

    @property
    def pays(self) -> bool:
        """Whether the winner is faster than no drafter beyond noise."""
        return self.winner.speed is not None and self.winner.speed.gain == FASTER

    @property
    def versus(self) -> tuple[Versus, ...]:
        """The winner against each of the others; none where there are too few prompts to pair."""
        side = self.standings.index(self.winner)
        pairs = [(other, paired(self.passes[other], self.passes[side])) for other in range(len(self.passes))]
        return tuple(
            Versus(self.standings[other].candidate, pair, _beats(self.standings, self.passes, side, other))
            for other, pair in pairs
            if pair is not None and other != side
        )


def rule(label: str, candidates: Sequence[Candidate], book: Book, work: Work, kind: str | None = None) -> Ruling:
    """Of all requests, or of those of one ``kind`` of text."""
    only = [i for i, each in enumerate(work.kinds) if kind in (None, each)]
    passes = [book.timed(side, work.parallel, only) for side in range(len(candidates))]
    found = []
    for side, candidate in enumerate(candidates):
        traces = [book.traces(side)[i] for i in only]
        found.append(
            replace(_standing(candidate, passes[0], passes[side], traces, side), taken_mib=book.taken_mib(side))
        )
    best = _best(passes, found)
    standings = tuple(_marked(each, side in best) for side, each in enumerate(found))
    winner = min((standings[side] for side in best), key=_simplicity)
    return Ruling(label, standings, winner, tuple(map(tuple, passes)))


def _standing(
    candidate: Candidate, base: Sequence[Pass], own: Sequence[Pass], traces: Sequence[Trace], side: int
) -> Standing:
    steps, accepted = sum(t.known_steps for t in traces), sum(t.accepted for t in traces)
    drafted = sum(t.drafted for t in traces)
    length = mean_length(accepted, steps) if steps else None
    positions = sum_positions(t.accepted_per_position if t.drafted else () for t in traces) or ()
    speed = cautious(compare(base, own, _limit(traces)), paired(base, own)) if side else None
    rates = sorted(each.rate for each in own)
    return Standing(
        candidate,
        speed,
        rates[len(rates) // 2],
        drafted,
        accepted,
        length,
        tuple(n / steps for n in positions) if steps else (),
        sum(t.prompt_ms for t in traces) / max(len(traces), 1),
        median([t.tokens_per_second for t in traces]) if traces else 0.0,
    )


def _limit(traces: Sequence[Trace]) -> float | None:
    """Tokens a forward pass of the target yields over whole answers: what no speed-up can exceed."""
    generated = sum(t.generated for t in traces)
    passes = sum(t.generated - t.accepted for t in traces)
    return generated / passes if passes > 0 else None


def _best(passes: Sequence[Sequence[Pass]], found: Sequence[Standing]) -> set[int]:
    """Sides that no other beats beyond noise."""
    sides = [i for i, each in enumerate(found) if each.speed is None or each.speed.claimed]
    beaten = {mine for mine in sides for other in sides if mine != other and _beats(found, passes, other, mine)}
    return set(sides) - beaten or {0}


def _beats(found: Sequence[Standing], passes: Sequence[Sequence[Pass]], one: int, other: int) -> bool:
    """Whether side ``one`` is faster than ``other``; against no drafter the verdict is the one already made."""
    speed = found[one].speed if other == 0 else found[other].speed if one == 0 else None
    if speed is not None:
        return speed.gain == (FASTER if other == 0 else SLOWER)
    over_prompts = paired(passes[other], passes[one])
    return cautious(compare(passes[other], passes[one]), over_prompts).gain == FASTER


def _marked(each: Standing, best: bool) -> Standing:
    return replace(each, best=best)


def _simplicity(each: Standing) -> tuple[int, int, int]:
    """No drafter before the others, small before large, shallow before deep."""
    return each.candidate.size, len(each.candidate.methods), each.candidate.n_max

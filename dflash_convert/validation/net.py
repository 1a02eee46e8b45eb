"""One drafter beside another of the same target, on the same requests in the same rounds: what it gains in the end.

A reduced head makes a step cheaper and a draft shorter; only both together say whether it pays, and it may pay on one
kind of text and cost on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dflash_convert.engine.trace import mean_length
from dflash_convert.measure.speed import DISTURBED, FASTER, NO_GAIN, SLOWER, Gain
from dflash_convert.text import percent
from dflash_convert.validation import gain
from dflash_convert.validation.gain import Passes, Timed

VERDICTS = {
    FASTER: "it pays",
    SLOWER: "it costs more than it saves",
    NO_GAIN: "no difference beyond noise",
    DISTURBED: "the speeds were disturbed",
}


@dataclass(frozen=True)
class Part:
    """On one kind of text, or on all (``kind`` empty): tokens a step of both, the share of it that is lost (negative:
    gained), and how many times as fast it is as the other, where that may be claimed."""

    kind: str
    mean_length: float
    beside_mean_length: float
    loss: float
    gain: Gain
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        change = percent(0.0 - self.loss, signed=True)
        length = f"mean length {self.beside_mean_length:.2f} -> {self.mean_length:.2f} ({change})"
        if self.speedup is None or self.low is None or self.high is None:
            return length
        return f"{length}, {self.speedup:.2f} x its speed ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Net:
    """``drafter`` against ``beside`` (names of files); ``by_kind`` where there is more than one kind, worst first."""

    drafter: str
    beside: str
    total: Part
    by_kind: tuple[Part, ...]
    sentence: str

    @property
    def lines(self) -> list[str]:
        return [f"net: {self.sentence}", *(f"  {part.kind}: {part}" for part in self.by_kind)]


def net(drafter: str, beside: str, kinds: Sequence[str], timed: Timed) -> Net:
    """``timed`` has the other drafter as its base; ``kinds[i]`` is the kind of text of request i."""
    total = _part("", timed)
    several = dict.fromkeys(kinds) if len(set(kinds)) > 1 else ()
    parts = [_part(kind, _only(timed, [i for i, each in enumerate(kinds) if each == kind])) for kind in several]
    by_kind = tuple(sorted(parts, key=lambda part: -part.loss))
    verdict = VERDICTS.get(total.gain, "the speed was not measured")
    worst = f"; it loses most on {by_kind[0].kind}" if by_kind and by_kind[0].loss > 0 else ""
    return Net(drafter, beside, total, by_kind, f"{drafter} beside {beside}: {verdict}: {total}{worst}")


def _part(kind: str, timed: Timed) -> Part:
    theirs, own = (_length(rows) for rows in (timed.base, timed.drafted))
    found = gain.compare(timed, None)
    part = Part(kind, round(own, 4), round(theirs, 4), round(1 - own / theirs, 4), found.gain)
    if not found.claimed:
        return part
    from dflash_convert.measure.paired import cautious, paired

    found = cautious(found, paired(*timed.passes()))
    low, high = found.spread
    return replace(part, gain=found.gain, speedup=round(found.measured, 4), low=round(low, 4), high=round(high, 4))


def _only(timed: Timed, some: Sequence[int]) -> Timed:
    base, drafted = ([tuple(row[i] for i in some) for row in rows] for rows in (timed.base, timed.drafted))
    return Timed(tuple(timed.names[i] for i in some), base, drafted, timed.order)


def _length(rows: Passes) -> float:
    """Tokens a step; counts are those of the first round."""
    return mean_length(sum(t.accepted for t in rows[0]), sum(t.known_steps for t in rows[0]))

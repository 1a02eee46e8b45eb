"""Machines that exist as a cost model: what drafting and verifying take, how far drafts are right, noise and stalls."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.tweaks import Tweak
from dflash_convert.engine.trace import Request, Trace


@dataclass(frozen=True)
class Costs:
    """Milliseconds: verifying k tokens is ``verify[0] + verify[1] * k``, ``jump`` more from 9 tokens on; drafting a
    block of k positions ``draft[0] + draft[1] * k``."""

    verify: tuple[float, float]
    draft: tuple[float, float]
    jump: float = 0.0

    def step(self, drafted: int, block: int) -> float:
        k = drafted + 1
        verify = self.verify[0] + self.verify[1] * k + (self.jump if k > 8 else 0.0)
        return verify + (self.draft[0] + self.draft[1] * (block + 1) if block else 0.0)


# shapes of public and measured figures: a 12 GB card flat in n, a data-centre card whose steps grow, a small CPU on
# which verifying costs nearly a decode a token, a laptop chip in between
MACHINES = {
    "RTX 3060": Costs((24.0, 0.05), (6.0, 0.1)),
    "H200": Costs((2.6, 0.25), (0.9, 0.05), jump=0.8),
    "CPU": Costs((3.0, 9.0), (4.0, 0.6)),
    "Apple": Costs((14.0, 1.4), (3.0, 0.3)),
}


@dataclass(frozen=True)
class Effect:
    """What a tweak does on a machine: factors of the times and of how sure drafts are."""

    verify: float = 1.0
    draft: float = 1.0
    right: float = 1.0


@dataclass
class Machine:
    """Engines that answer by the model. ``right`` is how sure a drafter is on average at the first position and
    ``fade`` what is left of it one position on; a draft is right with the probability that the drafter states."""

    costs: Costs
    seed: int
    right: dict[str, float] = field(default_factory=dict)
    fade: float = 0.97
    noise: float = 0.02
    stalls: float = 0.01
    starts: int = 0
    effects: dict[Tweak, Effect] = field(default_factory=dict)

    def cost(self, candidate: Candidate) -> Costs:
        verify = draft = 1.0
        for each in candidate.tweaks:
            verify, draft = verify * self.effects[each].verify, draft * self.effects[each].draft
        own = self.costs
        slower = (own.verify[0] * verify, own.verify[1] * verify)
        return Costs(slower, (own.draft[0] * draft, own.draft[1] * draft), own.jump * verify)

    def sure(self, candidate: Candidate) -> float:
        right = self.right.get(candidate.name, 0.0)
        for each in candidate.tweaks:
            right *= self.effects[each].right
        return right

    @contextmanager
    def start(self, candidate: Candidate, parallel: int = 1) -> Iterator[Engine]:
        self.starts += 1
        pace = random.Random(f"{self.seed} start {self.starts}").gauss(1.0, self.noise / 2)
        yield Engine(self, candidate, pace, random.Random(f"{self.seed} {self.starts}"))

    def together(self, answers: Engine, requests: Sequence[Request]) -> tuple[list[Trace], float]:
        traces = [answers.complete(request) for request in requests]
        return traces, sum(t.generation_ms for t in traces) / 2

    def speed(self, candidate: Candidate, requests: Sequence[Request]) -> float:
        """Tokens a millisecond on these requests, without noise."""
        quiet = replace(self, noise=0.0, stalls=0.0, starts=0)
        with quiet.start(candidate) as engine:
            traces = [engine.complete(request) for request in requests]
        return sum(t.generated for t in traces) / sum(t.generation_ms for t in traces)


@dataclass
class Engine:
    machine: Machine
    candidate: Candidate
    pace: float
    luck: random.Random

    def taken_mib(self) -> float | None:
        return None

    def complete(self, request: Request) -> Trace:
        hard, words = _text(self.machine.seed, str(request.prompt), request.n_predict)
        made = _Answer()
        made.generate(request.n_predict, self.machine, self.candidate, hard, words)
        factor = self.pace * max(self.luck.gauss(1.0, self.machine.noise), 0.5)
        if self.luck.random() < self.machine.stalls:
            factor *= self.luck.uniform(2.5, 12.0)
        return Trace(
            prompt_tokens=8,
            tokens=(),
            text="",
            drafted=made.drafted,
            accepted=made.accepted,
            generated=request.n_predict,
            prompt_ms=1.0,
            generation_ms=made.ms * factor,
            steps=made.steps if made.drafted else 0,
            accepted_per_position=tuple(made.kept) if made.drafted else (),
        )


Words = tuple[tuple[float, float], ...]


@cache
def _text(seed: int, prompt: str, tokens: int) -> tuple[float, Words]:
    """How hard a prompt's answer is, and the ease and fate of every word: the same for every candidate."""
    luck = random.Random(f"{seed} {prompt}")
    return luck.uniform(0.9, 1.05), tuple((luck.uniform(-0.3, 0.3), luck.random()) for _ in range(tokens + 1))


@dataclass
class _Answer:
    ms: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    kept: list[int] = field(default_factory=list)

    def generate(self, tokens: int, machine: Machine, candidate: Candidate, hard: float, words: Words) -> None:
        costs, p_min = machine.cost(candidate), candidate.p_min or 0.0
        prices = [costs.step(n, candidate.n_max) for n in range(candidate.n_max + 1)]
        self.kept = [0] * candidate.n_max
        scale = [machine.sure(candidate) * hard * machine.fade**i for i in range(candidate.n_max)]
        at = 1
        while at < tokens:
            ahead = words[at : min(at + candidate.n_max, tokens)]
            drafted, accepted, right = 0, 0, True
            for level, (ease, fate) in zip(scale, ahead, strict=False):
                sure = min(level + ease, 0.99)
                if p_min and sure < p_min:
                    break
                drafted += 1
                if right and fate < sure:
                    self.kept[accepted] += 1
                    accepted += 1
                elif p_min:
                    right = False
                else:
                    drafted = len(ahead)  # what follows a wrong draft is verified all the same
                    break
            self.ms += prices[drafted]
            self.steps += 1
            self.drafted += drafted
            self.accepted += accepted
            at += accepted + 1


def drafter(name: str, cap: int = 15, size: int = 100) -> Candidate:
    """A drafter that has no file."""
    return replace(NOTHING, name=name, methods=("draft-dflash",), n_max=cap, cap=cap, size=size)

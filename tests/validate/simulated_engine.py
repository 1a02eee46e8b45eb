"""An engine that exists in numbers alone: scripted times on a clock of its own, hundreds of validations a minute."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_convert.engine.trace import EngineInfo, Launch, Request, Trace
from dflash_convert.validation.options import Options
from dflash_convert.validation.pair import Pair
from dflash_convert.validation.prompts import Item
from dflash_convert.validation.result import FileFacts
from dflash_convert.validation.setup import Setup

PROMPTS, TOKENS, LENGTH = 12, 96, 4.0  # tokens a step

Delay = Callable[["Machine", bool, int], float]  # (machine, drafted, engine start) -> factor on a request's time


@dataclass
class Machine:
    """``gain`` is the truth: how many times faster drafting is. ``delay`` disturbs single requests."""

    gain: float
    delay: Delay
    seed: int
    noise: float = 0.03
    starts: int = 0
    plan: list[float] = field(default_factory=list)  # what the delay decided once
    now: float = 0.0  # milliseconds since the first start
    random: random.Random = field(init=False)
    script: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random, self.script = random.Random(self.seed), random.Random(-self.seed - 1)

    @property
    def expected(self) -> float:
        """Milliseconds that three rounds take when nothing disturbs them."""
        return 3 * PROMPTS * TOKENS * 10 * (1 + 1 / self.gain)

    @contextlib.contextmanager
    def start(self, info: EngineInfo, launch: Launch) -> Iterator[Any]:
        self.starts += 1
        pace = math.exp(self.random.gauss(0, self.noise / 3))  # engine starts differ a little
        yield Session(self, launch.drafter is not None, pace)


@dataclass
class Session:
    machine: Machine
    drafted: bool
    pace: float

    def complete(self, request: Request) -> Trace:
        machine, count = self.machine, request.n_predict
        own = 8 + 4 * (sum(str(request.prompt).encode()) % 7) / 7  # each prompt has its own pace
        ms = count * own * self.pace * math.exp(machine.random.gauss(0, machine.noise))
        ms *= machine.delay(machine, self.drafted, machine.starts) / (machine.gain if self.drafted else 1)
        machine.now += ms
        steps = max(round((count - 1) / LENGTH), 1) if self.drafted else 0
        accepted = min(round(steps * (LENGTH - 1)), count - 1 - steps) if self.drafted else 0
        tokens = tuple(range(count))
        return Trace(9, tokens, "x" * count, 7 * steps, accepted, count, 5.0, ms, steps, draft_ms=ms / 4)

    def log(self) -> str:
        return ""

    def build(self) -> str:
        return "simulated"


def setup(rounds: int = 3, **options: Any) -> Setup:
    """A quick validation of twelve prompts."""
    drafter = FileFacts("d.gguf", 1, "dflash", None, "Q8_0", 8, "draft-dflash")
    target = FileFacts("t.gguf", 1, "qwen3", None, "Q8_0")
    chosen = Options(Path("d.gguf"), Path("t.gguf"), **{"quick": True, **options})
    items = tuple(Item(f"prompt {i}", "set", TOKENS, prompt=f"prompt {i}") for i in range(PROMPTS))
    engine = EngineInfo("simulated", None, "")
    return Setup(chosen, Pair(drafter, target, 7, False, None, None), engine, items, (7,), rounds, None, (), "now")


def quiet(machine: Machine, drafted: bool, start: int) -> float:
    return 1.0


def stall(side: bool) -> Delay:
    """One side stands still for a while: somewhere in its time, for 1 to 20 requests, 2 to 40 times as slow."""

    def delay(machine: Machine, drafted: bool, start: int) -> float:
        if not machine.plan:
            first = machine.script.uniform(0, 2.8 * PROMPTS)
            machine.plan = [first, first + machine.script.uniform(1, 20), machine.script.uniform(2, 40), 0]
        first, last, factor, _ = machine.plan
        if drafted is not side:
            return 1.0
        machine.plan[3] += 1
        return factor if first <= machine.plan[3] <= last else 1.0

    return delay


def warming(machine: Machine, drafted: bool, start: int) -> float:
    """1.1 to 5 times as slow at first, and then faster and faster."""
    if not machine.plan:
        machine.plan = [machine.script.uniform(0.1, 4), machine.expected * machine.script.uniform(0.02, 0.5)]
    height, time = machine.plan
    return 1 + height * math.exp(-machine.now / time)


def busy(machine: Machine, drafted: bool, start: int) -> float:
    """Another program comes and goes: whole stretches at a third of the speed."""
    if not machine.plan:
        begin = machine.script.uniform(0, machine.expected)
        machine.plan = [begin, begin + machine.expected * machine.script.uniform(0.05, 0.4)]
    return 3.0 if machine.plan[0] <= machine.now <= machine.plan[1] else 1.0


def always_wrong(machine: Machine, drafted: bool, start: int) -> float:
    """The baseline is held up in every round, so that drafting looks better than it can be."""
    return 1.0 if drafted else 8.0

"""The candidates in a real llama.cpp."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.trial import Answers, Say
from dflash_convert.engine import external
from dflash_convert.engine.session import Session, start
from dflash_convert.engine.trace import EngineInfo, Launch, Request, Trace
from dflash_convert.validation import requests


@dataclass(frozen=True)
class LlamaCpp:
    """``launch`` holds what all candidates share: target, context, threads, devices. ``detail`` is told every start."""

    info: EngineInfo
    launch: Launch
    detail: Say = field(default=lambda _: None, compare=False, repr=False)

    @contextmanager
    def start(self, candidate: Candidate, parallel: int = 1) -> Iterator[Session]:
        chosen = replace(
            self.launch,
            drafter=candidate.drafter,
            spec_type=candidate.spec_type or self.launch.spec_type,
            n_max=candidate.n_max,
            p_min=candidate.p_min,
            parallel=parallel,
            settings=candidate.extra,
        )
        if not candidate.methods:
            chosen = replace(chosen, drafter=None, spec_type="")
        self.detail(external.shown(self.info, chosen))
        with start(self.info, chosen) as session:
            requests.warm_up(session)
            yield session

    def together(self, answers: Answers, wanted: Sequence[Request]) -> tuple[list[Trace], float]:
        if not isinstance(answers, Session):
            raise TypeError("only an engine's own session answers several requests at a time")
        return answers.complete_together(wanted)


def machine() -> str:
    """What tells this machine from another: finished runs of another one are never mixed in."""
    return f"{platform.node()} {platform.machine()} {os.cpu_count()}"

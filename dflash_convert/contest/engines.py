"""The candidates in a real llama.cpp."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.trial import Answers, Work
from dflash_convert.engine.session import Session, start
from dflash_convert.engine.trace import EngineInfo, Launch, Request, Trace
from dflash_convert.errors import UsageError
from dflash_convert.validation import requests
from dflash_convert.validation.prompts import Item


@dataclass(frozen=True)
class LlamaCpp:
    """``launch`` holds what all candidates share: target, context, threads, devices."""

    info: EngineInfo
    launch: Launch

    @contextmanager
    def start(self, candidate: Candidate, parallel: int = 1) -> Iterator[Session]:
        chosen = replace(
            self.launch,
            drafter=candidate.drafter,
            spec_type=candidate.spec_type or self.launch.spec_type,
            n_max=candidate.n_max,
            p_min=candidate.p_min,
            parallel=parallel,
        )
        if not candidate.methods:
            chosen = replace(chosen, drafter=None, spec_type="")
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


def main_work(engines: LlamaCpp, items: Sequence[Item], chats: bool) -> Work:
    """The prompts as requests. Chats and conversations are rendered by the engine, with its own earlier answers."""
    if all(item.prompt is not None for item in items):
        made = [requests.Query(i.name, i.set, str(i.prompt), Request(str(i.prompt), i.n_predict)) for i in items]
    else:
        with engines.start(NOTHING) as session:
            made = [each.query for each in requests.answer_items(session, items, chats, None, lambda *_: None)]
    return _work("one request at a time", made)


def parallel_work(work: Work, parallel: int) -> Work:
    """The same requests, that many at a time; repeated until every group is full."""
    count = max(len(work.requests), parallel)
    order = [i % len(work.requests) for i in range(-(-count // parallel) * parallel)]
    return Work(
        label=f"{parallel} requests at a time",
        names=tuple(work.names[i] for i in order),
        kinds=tuple(work.kinds[i] for i in order),
        requests=tuple(work.requests[i] for i in order),
        parallel=parallel,
    )


def long_work(engines: LlamaCpp, items: Sequence[Item], chats: bool, context: int) -> Work:
    """Some of the prompts behind text of their own kind, so that they end close to ``context`` tokens."""
    with engines.start(NOTHING) as session:
        answered = requests.answer_items(session, items[: requests.SOME], chats, None, lambda *_: None)
        made = requests.lengthened(session, answered, context, None)
    if not made:
        raise UsageError(f"no prompt is short enough for a context of {context} tokens")
    return _work(f"{context} tokens of context", made)


def _work(label: str, made: Sequence[requests.Query]) -> Work:
    return Work(label, tuple(q.name for q in made), tuple(q.set for q in made), tuple(q.request for q in made))

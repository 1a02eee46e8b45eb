"""Candidates answer the same requests in turn, one engine at a time; finished stints are kept and not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from dflash_convert.contest.candidates import Candidate
from dflash_convert.engine.trace import Request, Trace
from dflash_convert.errors import DflashError
from dflash_convert.hashing import known_sha256
from dflash_convert.jsonfile import read_json
from dflash_convert.measure.schedule import Stint, schedule
from dflash_convert.measure.speed import Pass, Sample
from dflash_convert.output import write_text
from dflash_convert.text import counted, duration
from dflash_convert.validation.result import build
from dflash_convert.watching import UNSEEN, Watch

Say = Callable[[str], None]

# what a kept run may hold
MOST = 1 << 40  # tokens of a request, MiB
LONGEST = 1e12  # milliseconds
BEYOND = 4096  # tokens of one block, by which the last step may pass the end


class Answers(Protocol):
    """A loaded engine, as far as a trial needs it."""

    def complete(self, request: Request) -> Trace:
        """One request, run to its end."""

    def taken_mib(self) -> float | None:
        """The memory that the engine says it took, MiB; None when it does not say."""


class Engines(Protocol):
    """Starts engines, one at a time."""

    def start(self, candidate: Candidate, parallel: int = 1) -> AbstractContextManager[Answers]:
        """Loaded and warmed up inside the block."""

    def together(self, answers: Answers, requests: Sequence[Request]) -> tuple[list[Trace], float]:
        """The requests at the same time, and the milliseconds until the last one ended."""


@dataclass(frozen=True)
class Work:
    """The requests of one kind of load. ``kinds[i]`` is the kind of text of request i; ``parallel`` at a time.
    ``apart``: the kinds are states of the engine, which are judged one by one and never together."""

    label: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    requests: tuple[Request, ...]
    parallel: int = 1
    apart: bool = False


@dataclass(frozen=True)
class Done:
    """One pass of one candidate: a trace a request, milliseconds of every group of parallel requests (none when one
    request runs at a time), its place in time, and the MiB that the engine said it took."""

    traces: tuple[Trace, ...]
    wall: tuple[float, ...]
    at: int
    taken_mib: float | None = None


@dataclass
class Book:
    """Every pass of every side so far: ``passes[side][round]``."""

    passes: dict[int, dict[int, Done]] = field(default_factory=dict)
    starts: int = 0

    def of(self, *sides: int) -> Book:
        """These sides alone, numbered anew."""
        return Book({new: dict(self.passes[old]) for new, old in enumerate(sides)}, self.starts)

    def traces(self, side: int) -> tuple[Trace, ...]:
        """The first round's."""
        return self.passes[side][min(self.passes[side])].traces

    def taken_mib(self, side: int) -> float | None:
        """The most that any pass was told of."""
        told = [done.taken_mib for done in self.passes[side].values() if done.taken_mib is not None]
        return max(told, default=None)

    def timed(self, side: int, parallel: int = 1, only: Sequence[int] | None = None) -> list[Pass]:
        """Passes in the order of the rounds, of the requests ``only`` (None: all)."""
        found = []
        for _, done in sorted(self.passes[side].items()):
            traces = done.traces
            if parallel > 1:
                groups = [traces[i : i + parallel] for i in range(0, len(traces), parallel)]
                timed = zip(groups, done.wall, strict=True)
                samples = [Sample(sum(t.generated for t in group), ms) for group, ms in timed]
            else:
                chosen = range(len(traces)) if only is None else only
                samples = [Sample(traces[i].generated, traces[i].generation_ms) for i in chosen]
            found.append(Pass(done.at, tuple(samples)))
        return found


@dataclass(frozen=True)
class Store:
    """Finished passes on disk, by the hash of all that decides them; None keeps nothing.

    ``identity`` is what the passes of this contest have in common: machine, engine, target, requests.
    """

    directory: Path | None
    identity: str

    def path(self, candidate: Candidate, work: Work, number: int) -> Path | None:
        if self.directory is None:
            return None
        drafter = (
            None if candidate.drafter is None else [str(candidate.drafter.resolve()), known_sha256(candidate.drafter)]
        )
        settings = [candidate.methods, drafter, candidate.n_max, candidate.p_min, candidate.extra]
        settings += [work.parallel, number]
        requests = [asdict(request) for request in work.requests]
        key = sha256(json.dumps([self.identity, settings, requests], sort_keys=True).encode()).hexdigest()
        return self.directory / f"{key[:32]}.json"

    def read(self, candidate: Candidate, work: Work, number: int) -> Done | None:
        path = self.path(candidate, work, number)
        if path is None or not path.is_file():
            return None
        try:
            done = build(Done, read_json(path))
        except (DflashError, ValueError, KeyError, TypeError):
            return None  # not whole: it is measured again
        return done if possible(done, work) else None

    def write(self, candidate: Candidate, work: Work, number: int, done: Done) -> None:
        path = self.path(candidate, work, number)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(asdict(done)), force=True)


def possible(done: Done, work: Work) -> bool:
    """Whether an engine can have answered ``work`` like this: a kept file may be damaged, or another's."""
    groups = len(work.requests) // work.parallel if work.parallel > 1 else 0
    return (
        len(done.traces) == len(work.requests)
        and len(done.wall) == groups
        and all(0 < ms < LONGEST for ms in done.wall)
        and 0 <= done.at < MOST
        and (done.taken_mib is None or 0 <= done.taken_mib < MOST)
        and all(_possible(*each) for each in zip(done.traces, work.requests, strict=True))
    )


def _possible(trace: Trace, request: Request) -> bool:
    """Comparisons alone: they hold for no NaN, and no number is too large for them."""
    counts = (trace.prompt_tokens, trace.drafted, trace.accepted, trace.generated, trace.steps or 0)
    positions = trace.accepted_per_position or ()
    each = MOST if trace.steps is None else trace.steps
    return (
        all(0 <= count < MOST for count in counts)
        and trace.accepted <= trace.drafted
        and trace.generated <= request.n_predict + BEYOND
        and (0 < trace.generation_ms < LONGEST or (trace.generation_ms == 0 and trace.generated <= 1))
        and 0 <= trace.prompt_ms < LONGEST
        and (trace.draft_ms is None or 0 <= trace.draft_ms < LONGEST)
        and len(positions) <= BEYOND
        and all(0 <= count <= each for count in positions)
    )


def run(
    engines: Engines,
    candidates: Sequence[Candidate],
    work: Work,
    rounds: int,
    store: Store,
    say: Say = lambda _: None,
    book: Book | None = None,
    watch: Watch = UNSEEN,
) -> Book:
    """``rounds`` of all candidates in turned order (:mod:`dflash_convert.measure.schedule`), after ``book``'s own.
    ``watch`` counts requests."""
    watch.begin(len(candidates) * rounds * len(work.requests), work.label)
    book = book or Book()
    before = len(book.passes.get(0, {}))
    stints = schedule(len(candidates), rounds)
    if len(stints) > 1:
        say(f"{work.label}: {counted(len(candidates), 'candidate')}, at most {counted(len(stints), 'engine start')}")
    told = False
    for i, each in enumerate(stints):
        stint = Stint(each.side, tuple(before + number for number in each.rounds))
        starts, began = book.starts, time.monotonic()
        _stint(engines, candidates[stint.side], stint, work, store, say, book, watch)
        more = sum(len(later.rounds) for later in stints[i + 1 :])
        if more and not told and book.starts > starts:
            seconds, told = time.monotonic() - began, True
            say(f"that start took {duration(seconds)}: about {duration(seconds / len(each.rounds) * more)} left")
    return book


def _stint(
    engines: Engines, candidate: Candidate, stint: Stint, work: Work, store: Store, say: Say, book: Book, watch: Watch
) -> None:
    missing = []
    for number in stint.rounds:
        kept = store.read(candidate, work, number)
        if kept is None:
            missing.append(number)
        else:
            _note(book, stint.side, number, kept)
            watch.update(len(work.requests))
    if not missing:
        return
    say(f"{candidate.name}{', ' * bool(candidate.settings)}{candidate.settings}: {work.label}, round {missing[0] + 1}")
    book.starts += 1
    watch.item(candidate.name)
    with engines.start(candidate, work.parallel) as answers:
        for number in missing:
            at = sum(len(rounds) for rounds in book.passes.values())
            done = _answers(engines, answers, work, at, watch)
            store.write(candidate, work, number, done)
            _note(book, stint.side, number, done)


def _answers(engines: Engines, answers: Answers, work: Work, at: int, watch: Watch) -> Done:
    traces: list[Trace] = []
    wall: list[float] = []
    if work.parallel == 1:
        for request in work.requests:
            traces.append(answers.complete(request))
            watch.update()
        return Done(tuple(traces), (), at, answers.taken_mib())
    for first in range(0, len(work.requests), work.parallel):
        found, ms = engines.together(answers, work.requests[first : first + work.parallel])
        traces += found
        watch.update(len(found))
        wall.append(ms)
    return Done(tuple(traces), tuple(wall), at, answers.taken_mib())


def _note(book: Book, side: int, number: int, done: Done) -> None:
    book.passes.setdefault(side, {})[number] = done

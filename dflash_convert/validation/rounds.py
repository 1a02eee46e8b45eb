"""The runs: baseline and drafted sides in turn, once a round; what complements them; a stop where it is hopeless.

One engine is loaded at a time, so sides alternate by engine starts (:mod:`dflash_convert.measure.schedule`). The
first round answers every prompt without the drafter, then with it, and judges the pair: a broken one ends there.
The sampled, long and other runs share the engine starts of the later rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_convert.engine import external
from dflash_convert.engine.failures import OUT_OF_MEMORY, EngineRunError, out_of_memory
from dflash_convert.engine.session import Session, start
from dflash_convert.engine.trace import Sampling, Trace
from dflash_convert.measure.schedule import Stint, schedule
from dflash_convert.measure.speed import DISTURBED, NOT_MEASURED, Gain
from dflash_convert.validation import compare, gain, requests, sweep, verdict
from dflash_convert.validation.gain import SpeedReport, Timed
from dflash_convert.validation.net import Net, net
from dflash_convert.validation.result import PromptResult, RunResult, Sweep, figures, total_of
from dflash_convert.validation.setup import Setup

BASE, MAIN = 0, 1  # sides; then the other n-max of the sweep, and last another drafter
ATTEMPTS = 2  # a measurement that cannot be right is made once more


@dataclass(frozen=True)
class Outcome:
    """What the runs gave at one context size."""

    main: RunResult
    others: tuple[RunResult, ...]
    sweep: Sweep | None
    gain: Gain
    speed: SpeedReport
    build: str
    context: int
    long_context: int | None
    thinking: str | None
    stopped_early: bool = False
    warnings: tuple[str, ...] = ()
    beside: Net | None = None


@dataclass
class _Book:
    """What is known so far: cases and results of the first round, and every pass of the timed ones."""

    main_case: requests.Case | None = None
    thinking: bool | None = None  # the template's own mode, None where it has no switch
    main: RunResult | None = None
    complements: tuple[requests.Case, ...] | None = None
    others: list[RunResult] = field(default_factory=list)
    swept: dict[int, RunResult] = field(default_factory=dict)
    passes: dict[int, list[tuple[Trace, ...]]] = field(default_factory=dict)
    order: dict[int, list[int]] = field(default_factory=dict)
    unsteady: set[str] = field(default_factory=set)
    build: str = ""
    broken: bool = False
    stopped: bool = False

    def add(self, side: int, traces: Sequence[Trace]) -> None:
        at = sum(map(len, self.order.values()))
        self.passes.setdefault(side, []).append(tuple(traces))
        self.order.setdefault(side, []).append(at)


@dataclass(frozen=True)
class _Runs:
    """Setup and sizes, the same for all runs of one attempt at a context size."""

    setup: Setup
    context: int
    long_context: int | None
    progress: requests.Progress

    @property
    def sides(self) -> tuple[int, ...]:
        """The n-max of every side; 0 is the baseline."""
        return (0, *self.setup.n_max, *(() if self.setup.beside is None else self.setup.n_max[:1]))

    @property
    def beside(self) -> int | None:
        """The side of the other drafter."""
        return None if self.setup.beside is None else len(self.sides) - 1

    @property
    def wanted(self) -> bool:
        """Whether runs beside the main one are wanted."""
        return not self.setup.options.quick

    @property
    def judged_first(self) -> bool:
        return not self.setup.options.keep_going


def run_at(setup: Setup, context: int, long_context: int | None, progress: requests.Progress) -> Outcome:
    """All runs with one context size; raises :class:`EngineRunError`."""
    runs, book = _Runs(setup, context, long_context, progress), _Book()
    for stint in schedule(len(runs.sides), setup.rounds):
        _stint(runs, book, stint)
        if book.stopped:
            return _outcome(runs, book, NOT_MEASURED, gain.unmeasured(_STOPPED, setup.rounds))
    if runs.wanted:
        for side in (BASE, MAIN):  # with one round no engine start was left for them
            if (book.complements is None) if side == BASE else not book.others and book.complements:
                _stint(runs, book, Stint(side, ()))
    attempts, found = 1, gain.compare(_timed(book, MAIN), _limit(book))
    while found.gain == DISTURBED and attempts < ATTEMPTS and not book.broken:
        progress(f"the speeds cannot be right ({gain.why(found, _limit(book))}): measured again", False)
        attempts += 1
        book.passes, book.order = {}, {}
        for stint in schedule(len(runs.sides), setup.rounds):
            _stint(runs, book, stint)
        found = gain.compare(_timed(book, MAIN), _limit(book))
    report = gain.report(_timed(book, MAIN), found, _limit(book), attempts)
    return _outcome(runs, book, found.gain, report)


def _limit(book: _Book) -> float:
    return book.main.total.mean_length if book.main else 1.0


def _timed(book: _Book, side: int, some: Sequence[int] | None = None) -> Timed:
    """Baseline and one side in every round, on ``some`` of the main requests (None: all)."""
    names = [q.name for q in book.main_case.queries] if book.main_case else []
    kept = tuple(range(len(names))) if some is None else some
    base = [tuple(row[i] for i in kept) for row in book.passes[BASE]]
    ran = book.passes[side]
    if side == MAIN:  # the others ran only these
        ran = [tuple(row[i] for i in kept) for row in ran]
    order = (tuple(book.order[BASE]), tuple(book.order[side]))
    return Timed(tuple(names[i] for i in kept), base, ran, order)


def _sweep(runs: _Runs, book: _Book, main: RunResult) -> Sweep:
    some = sweep.chosen(len(main.prompts))
    tried = [sweep.Tried(runs.sides[MAIN], tuple(main.prompts[i] for i in some), _timed(book, MAIN, some))]
    for side, run in book.swept.items():
        tried.append(sweep.Tried(run.n_max, run.prompts, _timed(book, side, some)))
    return sweep.choose(tried)


_STOPPED = "stopped after the first round: the pair is broken"


def _outcome(runs: _Runs, book: _Book, found: Gain, report: SpeedReport) -> Outcome:
    if book.main is None:
        raise ValueError("no n-max to run")
    points = None
    if len(runs.setup.n_max) > 1 and not book.stopped:
        points = _sweep(runs, book, book.main)
    advice = None if book.broken else gain.advise(found, report, runs.setup.n_max[0], points)
    unsteady = ", ".join(sorted(book.unsteady))
    return Outcome(
        main=book.main,
        others=(*book.others, *book.swept.values()),
        sweep=points,
        gain=found,
        speed=replace(report, advice=advice),
        build=book.build,
        context=runs.context,
        long_context=runs.long_context,
        thinking=None if book.thinking is None else ("on" if book.thinking else "off"),
        stopped_early=book.stopped,
        warnings=(f"the greedy text with the drafter changes from round to round: {unsteady}",) if unsteady else (),
        beside=_beside(runs, book),
    )


def _beside(runs: _Runs, book: _Book) -> Net | None:
    """The drafter against the other one, where both have run."""
    side, other = runs.beside, runs.setup.beside
    if side is None or other is None or side not in book.passes or book.main_case is None:
        return None
    queries = book.main_case.queries
    order = (tuple(book.order[side]), tuple(book.order[MAIN]))
    timed = Timed(tuple(q.name for q in queries), book.passes[side], book.passes[MAIN], order)
    return net(runs.setup.options.drafter.name, Path(other.path).name, [q.set for q in queries], timed)


def _stint(runs: _Runs, book: _Book, stint: Stint) -> None:
    """One engine start with all its rounds, and the complementing runs where their time has come."""
    n_max = runs.sides[stint.side]
    beside = stint.side == runs.beside
    launch = runs.setup.launch(n_max, max(runs.context, runs.long_context or 0), beside=beside)
    runs.setup.detail(external.shown(runs.setup.engine, launch))
    with start(runs.setup.engine, launch) as session:
        requests.warm_up(session)
        for number in stint.rounds:
            name = f"with {'the other' if beside else 'the'} drafter, n-max {n_max}" if n_max else "without the drafter"
            turn = f"round {number + 1} of {runs.setup.rounds}, " if runs.setup.rounds > 1 else ""
            runs.progress(turn + name, False)
            _pass(runs, book, session, stint.side)
            if book.stopped:
                return
        if stint.side == BASE and runs.wanted and book.complements is None and (book.main or not runs.judged_first):
            runs.progress("the other runs, without the drafter", False)
            book.complements = _complements(runs, book, session)
        elif stint.side == MAIN and book.complements and not book.others:
            runs.progress(f"the other runs, with the drafter, n-max {n_max}", False)
            book.others += [_drafted(runs, session, case, n_max)[0] for case in book.complements]


def _pass(runs: _Runs, book: _Book, session: Session, side: int) -> None:
    """All requests of one side once; the first pass of a side is the one whose counts and texts are kept."""
    case = book.main_case
    if case is None:
        book.main_case = case = _first(runs, book, session)
        book.add(BASE, case.traces)
    elif side == BASE:
        book.add(BASE, [a.trace for a in requests.replay(session, case.queries, runs.progress)])
    elif side == MAIN:
        if book.main is None:
            book.main, traces = _drafted(runs, session, case, runs.sides[MAIN])
            book.build = session.build()
            _require_no_silent_oom(book.main, session)
            thresholds = runs.setup.options.thresholds
            book.broken = bool(verdict.broken(book.main.total, book.main.prompts, thresholds))
            book.stopped = book.broken and runs.judged_first and (runs.wanted or runs.setup.rounds > 1)
        else:
            traces = tuple(a.trace for a in requests.replay(session, case.queries, runs.progress))
            book.unsteady |= _changed(book.main.prompts, traces)
        book.add(MAIN, traces)
    elif side == runs.beside:
        book.add(side, [a.trace for a in requests.replay(session, case.queries, runs.progress)])
    else:
        _sweep_pass(runs, book, session, side, case)


def _sweep_pass(runs: _Runs, book: _Book, session: Session, side: int, case: requests.Case) -> None:
    some = sweep.chosen(len(case.answered))
    part = replace(case, label="sweep", answered=tuple(case.answered[i] for i in some))
    if side not in book.swept:
        book.swept[side], traces = _drafted(runs, session, part, runs.sides[side])
        _require_no_silent_oom(book.swept[side], session)
    else:
        traces = tuple(a.trace for a in requests.replay(session, part.queries, runs.progress))
    book.add(side, traces)


def _changed(rows: Sequence[PromptResult], traces: Sequence[Trace]) -> set[str]:
    return {row.name for row, trace in zip(rows, traces, strict=True) if row.text != trace.text}


def _first(runs: _Runs, book: _Book, session: Session) -> requests.Case:
    """The main case: every prompt rendered and answered without the drafter."""
    chats = runs.setup.chats
    book.thinking = requests.thinking_modes(session) if chats else None
    wanted = _mode(runs, book)
    shown = book.thinking if wanted is None else wanted
    answered = requests.answer_items(session, runs.setup.items, chats, wanted, runs.progress)
    return requests.Case("main", shown, runs.context, answered)


def _mode(runs: _Runs, book: _Book) -> bool | None:
    """The thinking mode to ask for; None leaves it to the template."""
    both = book.thinking is None or runs.setup.options.thinking == "both"
    return None if both else runs.setup.options.thinking == "on"


def _complements(runs: _Runs, book: _Book, session: Session) -> tuple[requests.Case, ...]:
    """The baselines of what complements the main run."""
    options, main = runs.setup.options, book.main_case
    if main is None:
        return ()
    cases, wanted, default = [], _mode(runs, book), book.thinking
    if options.sampled:
        sampling = Sampling(options.temperature, options.top_p, options.top_k, options.seed)
        queries = requests.sampled(main.queries, sampling)
        ran = requests.replay(session, queries, runs.progress)
        cases.append(requests.Case("sampled", main.thinking, runs.context, ran))
    chats = [item for item in runs.setup.items if item.prompt is None][: requests.SOME]
    if default is not None and options.thinking == "both" and chats:
        other = requests.answer_items(session, chats, runs.setup.chats, not default, runs.progress)
        cases.append(requests.Case("thinking", not default, runs.context, other))
    if runs.long_context:
        queries = requests.lengthened(session, main.answered, runs.long_context, wanted)
        if queries:
            ran = requests.replay(session, queries, runs.progress)
            cases.append(requests.Case("long-context", main.thinking, runs.long_context, ran))
    return tuple(cases)


def _drafted(runs: _Runs, session: Session, case: requests.Case, n_max: int) -> tuple[RunResult, tuple[Trace, ...]]:
    """The same requests with the drafter, compared one by one."""
    answered = requests.replay(session, case.queries, runs.progress)
    near_tie = runs.setup.options.thresholds.near_tie
    rows = [_prompt_result(session, b, ran, near_tie) for b, ran in zip(case.answered, answered, strict=True)]
    traces = tuple(a.trace for a in answered)
    total = total_of(rows, traces, case.traces)
    result = RunResult(case.label, n_max, case.thinking, case.context, case.temperature, total, tuple(rows))
    return result, traces


def _prompt_result(session: Session, base: requests.Answered, ran: requests.Answered, near_tie: float) -> PromptResult:
    query, greedy = base.query, base.query.request.sampling.greedy
    found = compare.divergence(base.trace, ran.trace) if greedy else None
    if found and found.token is not None:
        gap = compare.measure_gap(session, query, base.trace, ran.trace, found.token)
        found = replace(found, gap=gap, near_tie=gap is not None and gap <= near_tie)
    return PromptResult(
        name=query.name,
        set=query.set,
        prompt=query.text,
        n_predict=query.request.n_predict,
        seed=None if greedy else query.request.sampling.seed,
        sent=query.request.prompt if isinstance(query.request.prompt, str) else "",
        tokens=ran.trace.tokens,
        text=ran.trace.text,
        baseline_text=base.trace.text if greedy else None,
        divergence=found,
        figures=figures([ran.trace], [base.trace], found is None if greedy else None),
    )


def _require_no_silent_oom(run: RunResult, session: Session) -> None:
    """A server that lost its drafter for lack of memory answers as if nothing had happened."""
    if run.total.drafted == 0 and out_of_memory(session.log()):
        text = "llama.cpp ran out of memory for the drafter and went on without it: nothing was drafted"
        raise EngineRunError(OUT_OF_MEMORY, text, tip="use a smaller --ctx-size", log=session.log())

"""The validation itself: start the engine without and with the drafter, collect, judge."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from dflash_convert.engine import external, find
from dflash_convert.engine.failures import OUT_OF_MEMORY, EngineRunError, out_of_memory
from dflash_convert.engine.session import Session, start
from dflash_convert.engine.trace import EngineInfo, Launch, Sampling
from dflash_convert.notes import Note
from dflash_convert.validation import compare, pair, prompts, reference, requests, verdict
from dflash_convert.validation.options import MIN_CONTEXT, Options, n_max_values
from dflash_convert.validation.result import (
    ENGINE_FAILURE,
    NO_FIGURES,
    Failure,
    PromptResult,
    ReferenceComparison,
    RunResult,
    Settings,
    Sweep,
    SweepPoint,
    ValidationResult,
    figures,
    total_of,
)

TIE = 0.02  # speeds this close (a fraction) count as equal, and the smaller n-max wins


@dataclass(frozen=True)
class Setup:
    """Everything decided before the first run."""

    options: Options
    pair: pair.Pair
    engine: EngineInfo
    items: tuple[prompts.Item, ...]
    n_max: tuple[int, ...]
    stored: reference.Reference | None
    notes: tuple[Note, ...]
    started_at: str


@dataclass(frozen=True)
class Outcome:
    """What the runs gave at one context size."""

    main: RunResult
    others: tuple[RunResult, ...]
    sweep: Sweep | None
    build: str
    context: int
    long_context: int | None
    thinking: str | None


def _silent(text: str, detail: bool) -> None:
    pass


def prepare(options: Options) -> Setup:
    """Read headers, prompts, reference; choose the engine; record the thresholds. Nothing runs yet."""
    files = pair.read_pair(options.drafter, options.target)
    stored = reference.load(options.reference) if options.reference else None
    if stored:
        options = stored.apply(options)
    files = _with_hashes(files, target=bool(options.reference or options.hashes))
    launch = _launch(options, files, None, 0, options.context)
    engine = find.choose(options.llama_server, launch)
    find.require(engine, str(files.drafter.spec_type))
    if stored:
        items = stored.items()
    elif options.prompts:
        items = prompts.read(options.prompts, options.n_predict)
    else:
        items = prompts.bundled(options.sets, options.n_predict)
    n_max, notes = n_max_values(options.n_max, files.n_max_cap, options.quick)
    quantized = external.quantizes_draft_cache(options.extra_args)
    if quantized:
        text = f"{quantized}: a quantized drafter cache was seen to destroy acceptance; f16 is the default"
        notes.append(Note("warning", text))
    now = _now()
    options = replace(options, thresholds=replace(options.thresholds, recorded_at=now))
    return Setup(options, files, engine, items, n_max, stored, tuple(notes), now)


def validate(setup: Setup, progress: requests.Progress = _silent) -> ValidationResult:
    """Run a prepared validation. An engine failure is a result too; other errors are raised."""
    began = time.monotonic()
    retries: list[str] = []
    contexts = _contexts(setup)
    while True:
        context, long_context = contexts.pop(0)
        try:
            outcome = run_at(setup, context, long_context, progress)
        except EngineRunError as failure:
            if failure.kind == OUT_OF_MEMORY and contexts:
                retries.append(f"out of memory at a context of {max(context, long_context or 0)} tokens")
                progress(f"{retries[-1]}; trying {contexts[0][1] or contexts[0][0]}", False)
                continue
            return _failed(setup, failure, context, long_context, tuple(retries), time.monotonic() - began)
        return _result(setup, outcome, tuple(retries), time.monotonic() - began)


def _contexts(setup: Setup) -> list[tuple[int, int | None]]:
    """Context sizes to try (ordinary prompts, long run): when memory runs out, the long run goes first."""
    options, trained = setup.options, setup.pair.trained_context
    context = min(options.context, trained) if trained else options.context
    long = min(options.long_context, trained) if trained else options.long_context
    ladder: list[tuple[int, int | None]] = []
    if long and not options.quick:
        ladder.append((context, long))
    ladder.append((context, None))
    while context // 2 >= MIN_CONTEXT:
        context //= 2
        ladder.append((context, None))
    return ladder


def run_at(setup: Setup, context: int, long_context: int | None, progress: requests.Progress) -> Outcome:
    """All runs with one context size; raises :class:`EngineRunError`."""
    options = setup.options
    size = max(context, long_context or 0)
    with start(setup.engine, _launch(options, setup.pair, None, 0, size)) as session:
        progress("without the drafter", False)
        requests.warm_up(session)
        default = requests.thinking_modes(session) if _chats(setup) else None
        baselines = _baselines(session, setup, context, long_context, default, progress)
    main, others, points = None, [], []
    build = ""
    for n_max in setup.n_max:
        launch = _launch(options, setup.pair, options.drafter, n_max, size)
        with start(setup.engine, launch) as session:
            progress(f"with the drafter, n-max {n_max}", False)
            requests.warm_up(session)
            cases = baselines if main is None else baselines[:1]
            ran = [_drafted(session, setup, case, n_max, progress) for case in cases]
            if main is None:
                main = ran[0]
                others += ran[1:]
                build = session.build()
                _require_no_silent_oom(main, session)
            else:
                others.append(replace(ran[0], label="sweep"))
            points.append(_point(ran[0]))
    if main is None:
        raise ValueError("no n-max to run")
    mode = None if default is None else ("on" if default else "off")
    sweep = _sweep(points) if len(points) > 1 else None
    return Outcome(main, tuple(others), sweep, build, context, long_context, mode)


def _baselines(
    session: Session,
    setup: Setup,
    context: int,
    long_context: int | None,
    default: bool | None,
    progress: requests.Progress,
) -> tuple[requests.Case, ...]:
    """The main case first, then what complements it."""
    options, chat = setup.options, _chats(setup)
    wanted = None if default is None or options.thinking == "both" else options.thinking == "on"
    shown = default if wanted is None else wanted
    answered = requests.answer_items(session, setup.items, chat, wanted, progress)
    cases = [requests.Case("main", shown, context, answered)]
    if options.quick:
        return tuple(cases)
    if options.sampled:
        sampling = Sampling(options.temperature, options.top_p, options.top_k, options.seed)
        queries = requests.sampled(cases[0].queries, sampling)
        cases.append(requests.Case("sampled", shown, context, requests.replay(session, queries, progress)))
    chats = [item for item in setup.items if item.prompt is None][: requests.SOME]
    if default is not None and options.thinking == "both" and chats:
        other = requests.answer_items(session, chats, chat, not default, progress)
        cases.append(requests.Case("thinking", not default, context, other))
    if long_context:
        queries = requests.lengthened(session, answered, long_context, wanted)
        if queries:
            ran = requests.replay(session, queries, progress)
            cases.append(requests.Case("long-context", shown, long_context, ran))
    return tuple(cases)


def _drafted(session: Session, setup: Setup, case: requests.Case, n_max: int, progress: requests.Progress) -> RunResult:
    """The same requests with the drafter, compared one by one."""
    answered = requests.replay(session, case.queries, progress)
    rows = []
    for base, ran in zip(case.answered, answered, strict=True):
        rows.append(_prompt_result(session, base, ran, setup.options.thresholds.near_tie))
    traces = tuple(a.trace for a in answered)
    total = total_of(rows, traces, case.traces)
    return RunResult(case.label, n_max, case.thinking, case.context, case.temperature, total, tuple(rows))


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


def _require_no_silent_oom(main: RunResult, session: Session) -> None:
    """A server that lost its drafter for lack of memory answers as if nothing had happened."""
    if main.total.drafted == 0 and out_of_memory(session.log()):
        text = "llama.cpp ran out of memory for the drafter and went on without it: nothing was drafted"
        raise EngineRunError(OUT_OF_MEMORY, text, tip="use a smaller --ctx-size", log=session.log())


def _point(run: RunResult) -> SweepPoint:
    total = run.total
    return SweepPoint(run.n_max, total.acceptance, total.mean_length, total.tokens_per_second, total.speedup)


def _sweep(points: Sequence[SweepPoint]) -> Sweep:
    fastest = max(p.tokens_per_second for p in points)
    best = min((p for p in points if p.tokens_per_second >= (1 - TIE) * fastest), key=lambda p: p.n_max)
    return Sweep(tuple(points), best.n_max, best.speedup is not None and best.speedup > 1)


def _result(setup: Setup, outcome: Outcome, retries: tuple[str, ...], seconds: float) -> ValidationResult:
    compared: ReferenceComparison | None = None
    if setup.stored:
        compared = setup.stored.compare(setup.pair, outcome.main, setup.options.thresholds.tolerance)
    total, rows = outcome.main.total, outcome.main.prompts
    judgement = verdict.judge(total, rows, setup.options.thresholds, compared)
    warned = [n.text for n in setup.notes if n.level == "warning"]
    warned += verdict.warnings(total, rows, outcome.others)
    warned += reference.warnings(compared) + [f"{r}: the runs used a smaller one" for r in retries]
    return ValidationResult(
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        warnings=tuple(warned),
        exit_code=judgement.exit_code,
        engine=replace(setup.engine, build=_build(setup.engine, outcome.build)),
        drafter=setup.pair.drafter,
        target=setup.pair.target,
        thresholds=setup.options.thresholds,
        settings=_settings(setup, outcome.context, outcome.long_context, outcome.thinking, seconds),
        total=total,
        prompts=rows,
        runs=outcome.others,
        sweep=outcome.sweep,
        reference=compared,
        retries=retries,
    )


def _failed(
    setup: Setup, failure: EngineRunError, context: int, long: int | None, retries: tuple[str, ...], seconds: float
) -> ValidationResult:
    return ValidationResult(
        verdict=ENGINE_FAILURE,
        reasons=(str(failure), *(f"tried before: {r}" for r in retries)),
        warnings=tuple(n.text for n in setup.notes if n.level == "warning"),
        exit_code=failure.exit_code,
        engine=setup.engine,
        drafter=setup.pair.drafter,
        target=setup.pair.target,
        thresholds=setup.options.thresholds,
        settings=_settings(setup, context, long, None, seconds),
        total=NO_FIGURES,
        failure=Failure(failure.kind, str(failure), failure.tip, failure.log),
        retries=retries,
    )


def _settings(setup: Setup, context: int, long: int | None, thinking: str | None, seconds: float) -> Settings:
    options = setup.options
    quantized = external.quantizes_draft_cache(options.extra_args)
    same = {f.name for f in dataclasses.fields(Settings)} & {f.name for f in dataclasses.fields(Options)}
    values = {name: getattr(options, name) for name in same}
    values |= {
        "n_max": setup.n_max[0],
        "n_max_requested": options.n_max,
        "n_max_cap": setup.pair.n_max_cap,
        "context": context,
        "long_context": long,
        "thinking": thinking,
        "prompt_sets": tuple(dict.fromkeys(item.set for item in setup.items)),
        "draft_cache_type": quantized or "f16",
        "started_at": setup.started_at,
        "seconds": round(seconds, 2),
    }
    return Settings(**values)


def _launch(options: Options, files: pair.Pair, drafter: Path | None, n_max: int, context: int) -> Launch:
    return Launch(
        target=options.target,
        drafter=drafter,
        spec_type=str(files.drafter.spec_type),
        n_max=n_max,
        ctx_size=context,
        threads=options.threads,
        gpu_layers=options.gpu_layers,
        device=options.device,
        draft_device=options.draft_device,
        extra_args=options.extra_args,
        start_timeout=options.start_timeout,
        request_timeout=options.request_timeout,
    )


def _with_hashes(files: pair.Pair, *, target: bool) -> pair.Pair:
    """The drafter is always hashed, so that a report names its file for good; the large target when asked for."""
    drafter = replace(files.drafter, sha256=(pair.sha256(Path(files.drafter.path)),))
    if not target:
        return replace(files, drafter=drafter)
    shards = tuple(pair.sha256(p) for p in pair.shard_paths(Path(files.target.path)))
    return replace(files, drafter=drafter, target=replace(files.target, sha256=shards))


def _chats(setup: Setup) -> bool:
    return setup.pair.has_template and any(item.prompt is None for item in setup.items)


def _build(engine: EngineInfo, said: str) -> str:
    """The build that was found, with what the engine said of itself when it knows."""
    return engine.build if not said or "unknown" in said or said in engine.build else f"{engine.build} ({said})"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

"""The validation itself: runs at the context sizes that fit, judged and put together."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import replace

from dflash_convert import system
from dflash_convert.engine import external
from dflash_convert.engine.failures import OUT_OF_MEMORY, EngineRunError
from dflash_convert.engine.trace import EngineInfo
from dflash_convert.validation import gain, reference, requests, verdict
from dflash_convert.validation.options import MIN_CONTEXT, Options
from dflash_convert.validation.result import (
    ENGINE_FAILURE,
    NO_FIGURES,
    Failure,
    ReferenceComparison,
    Settings,
    ValidationResult,
)
from dflash_convert.validation.rounds import Outcome, run_at
from dflash_convert.validation.setup import Setup, prepare

__all__ = ["prepare", "validate"]


def _silent(text: str, detail: bool) -> None:
    pass


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


def _result(setup: Setup, outcome: Outcome, retries: tuple[str, ...], seconds: float) -> ValidationResult:
    compared: ReferenceComparison | None = None
    if setup.stored:
        compared = setup.stored.compare(setup.pair, outcome.main, setup.options.thresholds.tolerance)
    total, rows = outcome.main.total, outcome.main.prompts
    judgement = verdict.judge(total, rows, setup.options.thresholds, compared, outcome.others, outcome.speed)
    warned = [n.text for n in setup.notes if n.level == "warning"]
    if outcome.stopped_early:
        warned.append("stopped after the main run's first round: the pair is broken; --keep-going runs the rest")
    warned += [*verdict.warnings(rows, outcome.others), *outcome.warnings, *gain.warnings(outcome.speed)]
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
        total=replace(total, speedup=outcome.speed.speedup),
        prompts=rows,
        runs=outcome.others,
        sweep=outcome.sweep,
        reference=compared,
        retries=retries,
        gain=outcome.gain,
        speed=outcome.speed,
        stopped_early=outcome.stopped_early,
        beside=outcome.beside,
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
        "rounds": setup.rounds,
        "n_max_requested": options.n_max,
        "n_max_cap": setup.pair.n_max_cap,
        "context": context,
        "long_context": long,
        "thinking": thinking,
        "prompt_sets": tuple(dict.fromkeys(item.set for item in setup.items)),
        "draft_cache_type": quantized or "f16",
        "started_at": setup.started_at,
        "seconds": round(seconds, 2),
        "cores": system.cores(),
        "load": setup.load,
    }
    return Settings(**values)


def _build(engine: EngineInfo, said: str) -> str:
    """The build that was found, with what the engine said of itself when it knows."""
    return engine.build if not said or "unknown" in said or said in engine.build else f"{engine.build} ({said})"

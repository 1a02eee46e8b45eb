"""A validation result with everything in it, some of it hostile."""

from __future__ import annotations

from dflash_convert.engine.trace import EngineInfo
from dflash_convert.pairing.finding import error
from dflash_convert.report.extras import Extras, TypeRow
from dflash_convert.validation.gain import Round, SpeedReport
from dflash_convert.validation.result import (
    Divergence,
    Figures,
    FileFacts,
    PromptResult,
    ReferenceComparison,
    RunResult,
    Settings,
    Sweep,
    SweepPoint,
    Thresholds,
    ValidationResult,
)

EVIL = "\"><script>alert('x')</script><img src=http://evil.example/x.png onerror=alert(1)>&\x00\udcff"
POSITIONS = (0.82, 0.61, 0.4)


def figures(acceptance: float = 0.481, speed: float = 91.5, base: float | None = 48.0) -> Figures:
    return Figures(
        prompt_tokens=31,
        generated=2142,
        prompt_ms=577.0,
        generation_ms=54413.0,
        prompt_tokens_per_second=53.72,
        tokens_per_second=speed,
        baseline_tokens_per_second=base,
        speedup=None,
        drafted=3244,
        accepted=1331,
        steps=811,
        acceptance=acceptance,
        mean_length=2.64,
        accepted_per_position=(665, 495, 324),
        acceptance_by_position=POSITIONS,
        identical=True,
    )


def prompt(name: str, acceptance: float, divergence: Divergence | None = None) -> PromptResult:
    return PromptResult(
        name=name,
        set="code",
        prompt="write " + EVIL,
        n_predict=96,
        seed=None,
        sent="",
        tokens=(1, 2),
        text=EVIL,
        baseline_text=EVIL,
        divergence=divergence,
        figures=figures(acceptance),
    )


SPEED = SpeedReport(
    rounds=3,
    prompts=2,
    speedup=1.91,
    low=1.85,
    high=1.98,
    tokens_per_second=91.5,
    baseline_tokens_per_second=48.0,
    limit=2.64,
    passes=(Round(48.0, 91.5), Round(47.9, 91.7), Round(48.2, 91.4)),
    target_ms=20.8,
    step_ms=28.8,
    draft_ms=5.1,
    reason="a step takes 28.8 ms " + EVIL,
    advice="nothing " + EVIL,
)


def result(name: str = EVIL) -> ValidationResult:
    main = (prompt("code 1", 0.62), prompt(EVIL, 0.25, Divergence(7, 31, EVIL, "b", 0.02, near_tie=True)))
    runs = (RunResult("sampled", 7, True, 4096, 1.0, figures(0.44, 80.0), ()),)
    points = (
        SweepPoint(4, 0.57, 2.9, 97.0, 2.02, 1.94, 2.1, "faster"),
        SweepPoint(15, 0.19, 3.1, 61.0, 1.27, 1.2, 1.33, "faster"),
    )
    return ValidationResult(
        verdict="healthy",
        reasons=("1331 of 3244 drafts accepted", EVIL),
        warnings=("long context is slower",),
        exit_code=0,
        engine=EngineInfo("llama-server", "/opt/llama-server", "b11549 " + EVIL, devices=("CUDA0",)),
        drafter=FileFacts(
            "/models/dflash-x.gguf", 390_420_000, "dflash", name, "Q4_0", 16, "draft-dflash", ("ab" * 32,)
        ),
        target=FileFacts("/models/target.gguf", 6_637_690_000, "gemma4", name, "Q4_0"),
        thresholds=Thresholds(min_acceptance=0.3, recorded_at="2026-10-01T10:00:00+00:00"),
        settings=Settings(
            n_max=7,
            n_max_requested=(4, 15),
            n_max_cap=15,
            context=4096,
            long_context=8192,
            temperature=1.0,
            top_p=0.95,
            top_k=64,
            seed=1,
            thinking="both",
            prompt_sets=("code",),
            threads=4,
            gpu_layers=99,
            device=None,
            draft_device=None,
            extra_args=("-fa", EVIL),
            draft_cache_type="f16",
            started_at="2026-10-01T10:00:00+00:00",
            seconds=61.0,
            cores=16,
            load=2.5,
        ),
        total=figures(),
        prompts=main,
        runs=runs,
        gain="faster",
        speed=SPEED,
        sweep=Sweep(points, 4, pays=True, clear=True, prompts=6),
        reference=ReferenceComparison(
            "/refs/cuda.json", "b11549", 0.49, 0.009, 0.02, (), same_drafter=False, same_target=True, passed=True
        ),
    )


EXTRAS = Extras(
    types=(TypeRow("Q4_0", 22, 786_432, 442_368), TypeRow("F32", 14, 1408, 5632)),
    findings=(error(EVIL, [EVIL], None, EVIL),),
)

"""From figures to a verdict, by thresholds that were recorded before the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dflash_convert.errors import ValidationError
from dflash_convert.text import percent
from dflash_convert.validation.gain import SpeedReport
from dflash_convert.validation.result import (
    BROKEN,
    HEALTHY,
    WEAK,
    Figures,
    PromptResult,
    ReferenceComparison,
    RunResult,
    Thresholds,
    Verdict,
)

COLLAPSE = 0.5  # a long context that keeps less than this share of the acceptance is worth a warning
FAR = 10.0  # near ties: noise grows with the context, but not as much
FAILED = ValidationError.exit_code


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reasons: tuple[str, ...]
    exit_code: int


def judge(
    total: Figures,
    prompts: Sequence[PromptResult],
    thresholds: Thresholds,
    reference: ReferenceComparison | None = None,
    runs: Sequence[RunResult] = (),
    speed: SpeedReport | None = None,
) -> Judgement:
    """Broken: nothing drafted, next to nothing accepted, or text that differs by more than a near tie; exit 6.
    Weak: below the weak floor, or acceptance or text lost in a long context (exit 0); or a requirement or reference
    missed (exit 6). Else healthy. A requirement of the speed that is missed ends with exit 6 too, and says nothing of
    the pair.

    Requirements that were given take the place of the weak floor. ``runs`` are those beside the main one.
    """
    found = broken(total, prompts, thresholds, runs)
    if found:
        return Judgement(BROKEN, found, FAILED)
    missed = _missed(total, thresholds) + _reference_reasons(reference)
    slow = _too_slow(total, thresholds, speed)
    if missed:
        return Judgement(WEAK, missed + slow, FAILED)
    weak = _collapsed(total, runs) + _other_texts(runs, thresholds.near_tie)
    if not thresholds.required and _below(total, thresholds.weak_acceptance, thresholds.weak_mean_length):
        weak = (f"few drafts are accepted: {_summary(total)}", *weak)
    code = FAILED if slow else 0
    return Judgement(WEAK if weak else HEALTHY, (*slow, *(weak or (_summary(total),))), code)


def broken(
    total: Figures, prompts: Sequence[PromptResult], thresholds: Thresholds, runs: Sequence[RunResult] = ()
) -> tuple[str, ...]:
    """Why the pair is broken; empty when it is not."""
    reasons = []
    if total.drafted == 0:
        reasons.append("the drafter proposed nothing: 0 tokens drafted")
    elif _below(total, thresholds.broken_acceptance, thresholds.broken_mean_length):
        reasons.append(f"next to no draft is accepted: {_summary(total)}; drafter and target do not belong together")
    reasons += [_difference(row, "") for row in prompts if row.divergence and not row.divergence.near_tie]
    for run in runs:
        reasons += [_difference(row, _in(run)) for row in run.prompts if _far(row, FAR * thresholds.near_tie)]
    return tuple(reasons)


def _far(prompt: PromptResult, gap: float) -> bool:
    """Whether the text differs at a choice that no noise can turn, or that could not be weighed."""
    found = prompt.divergence
    return found is not None and not found.near_tie and (found.gap is None or found.gap > gap)


def _in(run: RunResult) -> str:
    return f" in the {run.label} run (n-max {run.n_max})"


def _other_texts(runs: Sequence[RunResult], near_tie: float) -> tuple[str, ...]:
    """Texts beside the main run that differ, at a choice too near for a broken pair and too far for a near tie."""
    return tuple(
        f"{_difference(row, _in(run))}; {row.divergence.gap or 0:.2f} nats apart"
        for run in runs
        for row in run.prompts
        if row.divergence and not row.divergence.near_tie and not _far(row, FAR * near_tie)
    )


def _difference(prompt: PromptResult, where: str) -> str:
    found = prompt.divergence
    if found is None:
        raise ValueError(f"the text of {prompt.name} does not differ")
    place = f"token {found.token + 1}" if found.token is not None else f"character {found.character + 1}"
    return (
        f"the greedy text of {prompt.name} differs{where} from {place} on: "
        f"{found.expected!r} without the drafter, {found.found!r} with it"
    )


def _collapsed(total: Figures, runs: Sequence[RunResult]) -> tuple[str, ...]:
    return tuple(
        f"acceptance falls from {percent(total.acceptance)} to {percent(run.total.acceptance)} "
        f"at {run.context:,} tokens of context"
        for run in runs
        if run.label == "long-context" and run.total.acceptance < COLLAPSE * total.acceptance
    )


def _missed(total: Figures, thresholds: Thresholds) -> tuple[str, ...]:
    """Requirements of the pair."""
    reasons = []
    for name in ("acceptance", "mean_length"):
        value, wanted = getattr(total, name), thresholds.required.get(name)
        if wanted is not None and value < wanted:
            reasons.append(f"{name.replace('_', ' ')} is {value:.4g}, at least {wanted:g} was required")
    return tuple(reasons)


def _too_slow(total: Figures, thresholds: Thresholds, speed: SpeedReport | None) -> tuple[str, ...]:
    """Requirements of the speed. A speed-up counts with the lower end of its spread."""
    reasons = []
    wanted = thresholds.min_speedup
    low = speed.low if speed else None
    if wanted is not None and (low is None or low < wanted):
        shown = "not measured" if low is None else f"{low:.4g} at the lower end of its spread"
        reasons.append(f"speedup is {shown}, at least {wanted:g} was required")
    wanted = thresholds.min_tokens_per_second
    rounds = [one.tokens_per_second for one in speed.passes] if speed else []
    rate = median(rounds) if rounds else total.tokens_per_second
    if wanted is not None and rate < wanted:
        reasons.append(f"tokens per second is {rate:.4g}, at least {wanted:g} was required")
    return tuple(reasons)


def _reference_reasons(reference: ReferenceComparison | None) -> tuple[str, ...]:
    if reference is None or reference.passed:
        return ()
    reasons = []
    if reference.drop > reference.tolerance:
        reasons.append(
            f"acceptance fell by {100 * reference.drop:.2f} points against the reference "
            f"({percent(reference.acceptance)}), at most {100 * reference.tolerance:.2f} were allowed"
        )
    if reference.differing:
        reasons.append(f"the text differs from the reference for {', '.join(reference.differing)}")
    return tuple(reasons)


def _below(total: Figures, acceptance: float, length: float) -> bool:
    return total.acceptance < acceptance and total.mean_length < length


def _summary(total: Figures) -> str:
    share = f"{total.accepted:,} of {total.drafted:,} drafts accepted ({percent(total.acceptance)})"
    return f"{share}, mean length {total.mean_length:.2f}"


def warnings(prompts: Sequence[PromptResult], runs: Sequence[RunResult]) -> tuple[str, ...]:
    """What does not decide, but should be read."""
    found = []
    for where, rows in (("", prompts), *((f" in the {run.label} run", run.prompts) for run in runs)):
        for row in rows:
            if row.divergence and row.divergence.near_tie and row.divergence.gap is not None:
                found.append(
                    f"the greedy text of {row.name} differs{where} from token {(row.divergence.token or 0) + 1} on "
                    f"at a near tie ({row.divergence.gap:.3f} nats apart): arithmetic noise, not the pairing"
                )
    return tuple(found)


def texts(prompts: Sequence[PromptResult], runs: Sequence[RunResult]) -> str | None:
    """All greedy texts of all runs in a few words; None when none was compared."""
    compared = [
        p for rows in (prompts, *(run.prompts for run in runs)) for p in rows if p.figures.identical is not None
    ]
    different = [p for p in compared if p.divergence]
    ties = sum(1 for p in different if p.divergence and p.divergence.near_tie)
    if not compared:
        return None
    if not different:
        return "identical"
    if ties == len(different):
        return f"identical but for {ties} near tie{'s' * (ties != 1)}"
    return f"{len(different) - ties} of {len(compared)} differ"

"""From figures to a verdict, by thresholds that were recorded before the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_convert.errors import ValidationError
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
) -> Judgement:
    """Broken: nothing drafted, next to nothing accepted, or text that differs by more than a near tie; exit 6.
    Weak: below the weak floor (exit 0), or a requirement or reference missed (exit 6). Else healthy.

    Requirements that were given take the place of the weak floor.
    """
    broken = _broken(total, prompts, thresholds)
    if broken:
        return Judgement(BROKEN, broken, FAILED)
    missed = _missed(total, thresholds) + _reference_reasons(reference)
    if missed:
        return Judgement(WEAK, missed, FAILED)
    if not thresholds.required and _below(total, thresholds.weak_acceptance, thresholds.weak_mean_length):
        return Judgement(WEAK, (f"few drafts are accepted: {_summary(total)}",), 0)
    return Judgement(HEALTHY, (_summary(total),), 0)


def _broken(total: Figures, prompts: Sequence[PromptResult], thresholds: Thresholds) -> tuple[str, ...]:
    reasons = []
    if total.drafted == 0:
        reasons.append("the drafter proposed nothing: 0 tokens drafted")
    elif _below(total, thresholds.broken_acceptance, thresholds.broken_mean_length):
        reasons.append(f"next to no draft is accepted: {_summary(total)}; drafter and target do not belong together")
    for prompt in prompts:
        found = prompt.divergence
        if found and not found.near_tie:
            where = f"token {found.token + 1}" if found.token is not None else f"character {found.character + 1}"
            reasons.append(
                f"the greedy text of {prompt.name} differs from {where} on: "
                f"{found.expected!r} without the drafter, {found.found!r} with it"
            )
    return tuple(reasons)


def _missed(total: Figures, thresholds: Thresholds) -> tuple[str, ...]:
    reasons = []
    for name, wanted in thresholds.required.items():
        value = getattr(total, name)
        if value is None or value < wanted:
            shown = "not measured" if value is None else f"{value:.4g}"
            reasons.append(f"{name.replace('_', ' ')} is {shown}, at least {wanted:g} was required")
    return tuple(reasons)


def _reference_reasons(reference: ReferenceComparison | None) -> tuple[str, ...]:
    if reference is None or reference.passed:
        return ()
    reasons = []
    if reference.drop > reference.tolerance:
        reasons.append(
            f"acceptance fell by {100 * reference.drop:.2f} points against the reference "
            f"({100 * reference.acceptance:.2f} %), at most {100 * reference.tolerance:.2f} were allowed"
        )
    if reference.differing:
        reasons.append(f"the text differs from the reference for {', '.join(reference.differing)}")
    return tuple(reasons)


def _below(total: Figures, acceptance: float, length: float) -> bool:
    return total.acceptance < acceptance and total.mean_length < length


def _summary(total: Figures) -> str:
    share = f"{total.accepted} of {total.drafted} drafts accepted ({100 * total.acceptance:.1f} %)"
    return f"{share}, mean length {total.mean_length:.2f}"


def warnings(total: Figures, prompts: Sequence[PromptResult], runs: Sequence[RunResult]) -> tuple[str, ...]:
    """What does not decide, but should be read."""
    found = [
        f"the greedy text of {p.name} differs from token {(p.divergence.token or 0) + 1} on at a near tie "
        f"({p.divergence.gap:.3f} nats apart): arithmetic noise, not the pairing"
        for p in prompts
        if p.divergence and p.divergence.near_tie and p.divergence.gap is not None
    ]
    for run in runs:
        if run.label == "long-context" and total.acceptance and run.total.acceptance < COLLAPSE * total.acceptance:
            found.append(
                f"acceptance falls from {100 * total.acceptance:.1f} % to {100 * run.total.acceptance:.1f} % "
                f"at {run.context} tokens of context"
            )
        different = [p.name for p in run.prompts if p.divergence and not p.divergence.near_tie]
        if different:
            found.append(f"the greedy text differs in the {run.label} run (n-max {run.n_max}): {', '.join(different)}")
    return tuple(found)

"""The same result as Markdown, for a model card."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from dflash_convert.report.extras import Extras
from dflash_convert.report.markup import DASH, number, percent
from dflash_convert.validation.gain import describe
from dflash_convert.validation.result import ValidationResult
from dflash_convert.validation.table import sweep_claim
from dflash_convert.validation.verdict import texts

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~])")


def escape(value: Any) -> str:
    """One line of literal text: Markdown and HTML characters escaped, line breaks and control characters spaces."""
    if value is None:
        return DASH
    line = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    line = _SPECIAL.sub(r"\\\1", html.escape(line, quote=False))
    return line.replace("://", ":\\/\\/")  # so that no address becomes a link


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|"]
    lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def render(result: ValidationResult, extras: Extras | None = None) -> str:
    """A section for a model card: verdict, total, prompts, sweep, encodings."""
    parts = ["## Validation", _summary(result)]
    if result.prompts:
        head = ("prompt", "generated", "accepted", "drafted", "acceptance", "mean length", "tok/s", "without drafter")
        rows = [
            (
                p.name,
                p.figures.generated,
                p.figures.accepted,
                p.figures.drafted,
                percent(p.figures.acceptance),
                number(p.figures.mean_length),
                number(p.figures.tokens_per_second, 1),
                number(p.figures.baseline_tokens_per_second, 1),
            )
            for p in result.prompts
        ]
        parts.append(table(head, rows))
    if result.sweep:
        parts += ["### Draft length", _sweep(result)]
    if extras and extras.verified and extras.verified.fidelity:
        parts += ["### Fidelity", _fidelity(extras)]
    return "\n\n".join(parts) + "\n"


def _summary(result: ValidationResult) -> str:
    total, settings = result.total, result.settings
    drafter, target = PurePath(result.drafter.path).name, PurePath(result.target.path).name
    gain = "" if result.speed is None else f", here {describe(result.gain, result.speed)}"
    lines = [
        f"**{escape(result.verdict)}**{escape(gain)}: {escape(drafter)} with {escape(target)}, n-max {settings.n_max}, "
        f"{escape(result.engine.name)}, {escape(settings.started_at)}"
    ]
    if total.drafted:
        text = f"{total.accepted:,} of {total.drafted:,} drafts accepted ({percent(total.acceptance)}), "
        text += f"mean accepted length {total.mean_length:.2f}"
        same = texts(result.prompts, result.runs)
        lines.append(text + ("." if same is None else f"; greedy text {same}."))
    lines += [f"- {escape(reason)}" for reason in (*result.reasons, *result.warnings)]
    return "\n\n".join(lines[:2]) + ("\n\n" + "\n".join(lines[2:]) if lines[2:] else "")


def _sweep(result: ValidationResult) -> str:
    if result.sweep is None:
        return ""
    rows = [
        (p.n_max, percent(p.acceptance), number(p.mean_length), number(p.tokens_per_second, 1), number(p.speedup))
        for p in result.sweep.points
    ]
    advice = f"Recommended here: n-max {result.sweep.recommended}; {sweep_claim(result.sweep)}."
    return advice + "\n\n" + table(("n-max", "acceptance", "mean length", "tok/s", "speed"), rows)


def _fidelity(extras: Extras) -> str:
    found = extras.verified.fidelity if extras.verified else None
    rows = [
        (
            row.label,
            f"{row.cosine:.6f}",
            number(row.logit_distance, 4),
            percent(row.agreement),
            percent(row.expected_loss),
        )
        for row in (found.rows if found else ())
    ]
    head = ("file", "cosine", "logit distance", "same drafts", "expected loss")
    if found is None or found.source_acceptance is None:
        return table(head[:3], [row[:3] for row in rows])
    return table(head, rows)

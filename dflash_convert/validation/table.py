"""A validation result as a table for people, after the published tests of such pairs."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_convert.text import columns, percent, shorten, wrap
from dflash_convert.validation import gain
from dflash_convert.validation.result import Figures, RunResult, Sweep, ValidationResult

HEAD = (
    *("prompt", "prompt ms", "tokens", "tok/s", "gen ms", "tokens", "tok/s"),
    *("accepted", "drafted", "acceptance", "mean len", "baseline tok/s", "same text"),
)
RUNS_HEAD = (
    *("run", "n-max", "thinking", "context", "accepted", "drafted", "acceptance", "mean len", "tok/s"),
    *("baseline tok/s", "same text"),
)
PROMPT_TIMES = range(1, 5)  # columns that a narrow terminal does without
RUN_SETTINGS = range(2, 4)
COMPACT = ("accepted/drafted", "acceptance", "mean", "tok/s", "baseline", "text")  # what decides first
MARKS = "text: = the same as without the drafter, NO another"
NARROWEST_NAME = 10
NAME_WIDTH = 32
NONE = "-"


def render(result: ValidationResult, width: int | None = None) -> str:
    """All of it: pair, prompts, acceptance by position, other runs, sweep, verdict. Tables keep to ``width``."""
    parts = [_identity(result)]
    if not result.failure:
        parts.append(prompt_table(result, width))
        if result.total.acceptance_by_position:
            shares = ", ".join(map(percent, result.total.acceptance_by_position))
            parts.append(f"acceptance by block position: {shares}")
        if result.runs:
            parts.append(_runs_table(result.runs, width))
        if result.sweep:
            parts.append(_sweep_text(result))
        if result.reference:
            parts.append(_reference_text(result))
    parts += [f"warning: {text}" for text in result.warnings]
    parts.append("\n".join([verdict_line(result), *gain_lines(result)]))
    return "\n\n".join(parts)


def verdict_line(result: ValidationResult) -> str:
    return f"verdict: {result.verdict.replace('-', ' ')} ({'; '.join(result.reasons)})"


def gain_lines(result: ValidationResult) -> list[str]:
    """The second verdict, why, what to try, and the net of two drafters; nothing when the engine failed."""
    if result.speed is None:
        return []
    lines = [f"gain here: {gain.describe(result.gain, result.speed)}"]
    if result.speed.reason:
        lines.append(f"  why: {result.speed.reason}")
    if result.speed.advice:
        lines.append(f"  try: {result.speed.advice}")
    return [*lines, *(result.beside.lines if result.beside else ())]


def prompt_table(result: ValidationResult, width: int | None = None) -> str:
    figures = [(p.name, p.figures) for p in result.prompts]
    rows = [_row(*each) for each in figures]
    brief = [(shorten(name, NAME_WIDTH), *_compact(f)) for name, f in figures]
    more = len(figures) > 1
    return _table(
        _ruled(HEAD, rows, _row("total", result.total), more),
        PROMPT_TIMES,
        _ruled(("prompt", *COMPACT), brief, ("total", *_compact(result.total)), more),
        width,
    )


Rows = Sequence[tuple[str, ...] | None]


def _ruled(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], total: tuple[str, ...], more: bool) -> Rows:
    return [head, None, *rows, *([None] if more else []), total]


def _table(rows: Rows, dispensable: range, compact: Rows, width: int | None) -> str:
    """One line a row: all columns, those but the ``dispensable`` ones, or ``compact``, as there is room. --json has
    them all."""
    kept = [row and tuple(cell for i, cell in enumerate(row) if i not in dispensable) for row in rows]
    for each in (rows, kept):
        lines = columns(each, "<>")
        if width is None or max(map(len, lines)) <= width:
            return "\n".join(lines)
    return "\n".join([*_squeezed(compact, width or 0), *wrap(MARKS, width)])


def _squeezed(rows: Rows, width: int) -> list[str]:
    """Names as long as the room allows; where even short ones have none, columns go from the right, the mark last."""
    while True:
        over = max(map(len, columns(rows, "<>"))) - width
        names = max(len(row[0]) for row in rows if row)
        if over <= 0 or names - over >= NARROWEST_NAME or len(rows[0] or ()) <= 3:
            room = max(names - max(over, 0), NARROWEST_NAME)
            return columns([row and (shorten(row[0], room), *row[1:]) for row in rows], "<>")
        rows = [row and (*row[:-2], row[-1]) for row in rows]


def _identity(result: ValidationResult) -> str:
    drafter, target, settings = result.drafter, result.target, result.settings
    cache = settings.draft_cache_type
    lines = [
        f"drafter  {drafter.path} ({drafter.spec_type}, {drafter.file_type}, block {drafter.block_size})",
        f"target   {target.path} ({target.architecture}, {target.file_type})",
        f"engine   {result.engine.name}",
        f"runs     n-max {settings.n_max}, context {settings.context:,}, greedy, drafter cache {cache}",
    ]
    return "\n".join(lines)


def _row(name: str, f: Figures) -> tuple[str, ...]:
    return (
        shorten(name, NAME_WIDTH),
        f"{f.prompt_ms:,.0f}",
        f"{f.prompt_tokens:,}",
        f"{f.prompt_tokens_per_second:.2f}",
        f"{f.generation_ms:,.0f}",
        f"{f.generated:,}",
        f"{f.tokens_per_second:.2f}",
        f"{f.accepted:,}",
        f"{f.drafted:,}",
        percent(f.acceptance),
        f"{f.mean_length:.2f}",
        _baseline(f),
        _same(f),
    )


def _compact(f: Figures) -> tuple[str, ...]:
    """The cells below :data:`COMPACT`."""
    counts = (f"{f.accepted:,}/{f.drafted:,}", percent(f.acceptance), f"{f.mean_length:.2f}")
    mark = {"yes": "="}.get(_same(f), _same(f))
    return (*counts, f"{f.tokens_per_second:.2f}", _baseline(f), mark)


def _baseline(f: Figures) -> str:
    return NONE if f.baseline_tokens_per_second is None else f"{f.baseline_tokens_per_second:.2f}"


def _same(f: Figures) -> str:
    return NONE if f.identical is None else ("yes" if f.identical else "NO")


def _runs_table(runs: Sequence[RunResult], width: int | None) -> str:
    rows: list[tuple[str, ...] | None] = [RUNS_HEAD, None]
    brief: list[tuple[str, ...] | None] = [("run", "n-max", *COMPACT), None]
    for run in runs:
        label = run.label if not run.temperature else f"{run.label}, temperature {run.temperature:g}"
        thinking = NONE if run.thinking is None else ("on" if run.thinking else "off")
        t = run.total
        counts = (f"{t.accepted:,}", f"{t.drafted:,}", percent(t.acceptance), f"{t.mean_length:.2f}")
        speeds = (f"{t.tokens_per_second:.2f}", _baseline(t))
        rows.append((label, str(run.n_max), thinking, f"{run.context:,}", *counts, *speeds, _same(t)))
        brief.append((label.replace(", temperature ", " T="), str(run.n_max), *_compact(t)))
    return _table(rows, RUN_SETTINGS, brief, width)


def _sweep_text(result: ValidationResult) -> str:
    sweep = result.sweep
    if sweep is None:
        return ""
    tried = ", ".join(f"{p.n_max}: {p.tokens_per_second:.2f} tok/s" for p in sweep.points)
    return f"recommended: --spec-draft-n-max {sweep.recommended} (tried {tried}); {sweep_claim(sweep)}"


def sweep_claim(sweep: Sweep) -> str:
    """What the sweep shows of its recommendation, and no more."""
    if sweep.pays is None:
        return "not measured well enough to compare it with no drafter"
    first = "faster than no drafter" if sweep.pays else "not faster than no drafter"
    return first + ("" if sweep.clear else ", the others within noise")


def _reference_text(result: ValidationResult) -> str:
    r = result.reference
    if r is None:
        return ""
    there, here = percent(r.acceptance), percent(r.acceptance - r.drop)
    return (
        f"reference {r.path} ({r.engine}): acceptance {there} there, {here} here, "
        f"{'text identical' if not r.differing else f'{len(r.differing)} texts differ'}"
    )

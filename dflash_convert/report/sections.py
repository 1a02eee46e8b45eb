"""The sections of the HTML report, each a function of the result; empty when there is nothing to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from dflash_convert.glossary import BY_ANCHOR, plain
from dflash_convert.report.charts import SHARE, Bar, Scale, bars
from dflash_convert.report.extras import Extras
from dflash_convert.report.markup import facts, number, percent, section, table, tag, text
from dflash_convert.report.plots import Curve, curves
from dflash_convert.text import MIB, shorten, size
from dflash_convert.validation.result import FileFacts, PromptResult, ValidationResult
from dflash_convert.validation.table import sweep_claim
from dflash_convert.validation.verdict import texts

EXCERPT = 400  # characters of a prompt
FIRST_WORDS = 26
WORDS = ("drafter", "target", "block", "n-max", "acceptance", "mean-accepted-length", "verdict", "near-tie")


def identity(result: ValidationResult, extras: Extras) -> str:
    """Files with their hashes and how they were run: for the record, so it is folded up."""
    engine, settings = result.engine, result.settings
    run = [
        ("engine", engine.name),
        ("devices", ", ".join(engine.devices)),
        ("n-max", settings.n_max),
        ("context", f"{settings.context:,} tokens"),
        ("draft cache", settings.draft_cache_type),
        ("threads", settings.threads or "as the engine chooses"),
        ("processor cores", settings.cores),
        ("machine load before the run", None if settings.load is None else f"{settings.load:.1f} busy cores"),
        ("GPU layers", settings.gpu_layers),
        ("device", settings.device),
        ("draft device", settings.draft_device),
        ("extra arguments", " ".join(settings.extra_args)),
        ("prompt sets", ", ".join(settings.prompt_sets)),
        ("rounds", settings.rounds),
        ("duration", f"{settings.seconds:.0f} s"),
    ]
    files = _file("Drafter", result.drafter) + _file("Target", result.target)
    folded = tag("details", tag("summary", "Files, hashes and settings") + files + facts(run, "Run"))
    return section("The record", folded, _types(extras))


def _file(role: str, file: FileFacts) -> str:
    rows = [
        ("file", PurePath(file.path).name),
        ("name", file.name),
        ("architecture", file.architecture),
        ("encoding", file.file_type),
        ("size", size(file.size)),
        ("block", file.block_size),
        ("drafting method", file.spec_type),
        ("SHA-256", " ".join(file.sha256)),
    ]
    return facts(rows, role)


def acceptance(result: ValidationResult) -> str:
    total = result.total
    line = (total.acceptance, f"average of all drafts, {percent(total.acceptance, 0)}") if total.drafted else None
    rates = total.acceptance_by_position or ()
    title = "Share of steps that kept the draft, by block position"
    kept = [Curve("kept", rates, 0)] if len(rates) > 1 else []
    by_position = curves(title, kept, "block position", "kept", percent=True, line=line)
    contexts = _contexts(result)
    found = [Curve("accepted", list(contexts.values()), 0)] if len(contexts) > 1 else []
    by_context = curves(
        "Drafts accepted, by tokens of context",
        found,
        "tokens of context, at most",
        "accepted",
        percent=True,
        line=line,
        labels=list(contexts),
    )
    axis = SHARE._replace(title="share of drafts accepted", line=line)
    prompts = [Bar(_words(p), p.figures.acceptance, percent(p.figures.acceptance, 0) or "") for p in result.prompts]
    by_prompt = bars("Drafts accepted, by prompt", prompts, axis)
    shown = by_position + by_context + by_prompt
    charts = tag("div", shown, class_="charts") if shown else ""
    return section("Acceptance", charts, _prompt_table(result.prompts), _texts(result.prompts))


def _words(prompt: PromptResult) -> str:
    """A prompt by its first words, or by its name where it was given as tokens."""
    return shorten(" ".join(prompt.prompt.split()), FIRST_WORDS) or prompt.name


def _contexts(result: ValidationResult) -> dict[str, float]:
    """Share of accepted drafts of greedy prompts, by the power of two that holds prompt and answer."""
    same = [run.prompts for run in result.runs if run.label == "long-context" and not run.temperature]
    sums: dict[int, tuple[int, int]] = {}
    for p in (p for rows in (result.prompts, *same) for p in rows if p.figures.drafted):
        tokens = p.figures.prompt_tokens + p.figures.generated
        top = 1 << max(tokens - 1, 1).bit_length()
        accepted, drafted = sums.get(top, (0, 0))
        sums[top] = accepted + p.figures.accepted, drafted + p.figures.drafted
    return {f"{top:,}": accepted / drafted for top, (accepted, drafted) in sorted(sums.items())}


def _prompt_table(prompts: Sequence[PromptResult]) -> str:
    if not prompts:
        return ""
    head = ("prompt", "tokens", "answer", "accepted", "acceptance", "mean length", "tok/s", "text")
    begins = [None if _named_by_words(p) else _words(p) for p in prompts]
    rows: list[tuple[object, ...]] = [
        (
            p.name,
            f"{p.figures.prompt_tokens:,}",
            f"{p.figures.generated:,}",
            f"{p.figures.accepted:,} of {p.figures.drafted:,}",
            percent(p.figures.acceptance),
            number(p.figures.mean_length),
            number(p.figures.tokens_per_second, 1),
            _same(p),
        )
        for p in prompts
    ]
    caption = "Every prompt of the main run (greedy)"
    if not any(begins):
        return table(head, rows, caption, numbers=1)
    rows = [(row[0], begun, *row[1:]) for row, begun in zip(rows, begins, strict=True)]
    return table((head[0], "begins", *head[1:]), rows, caption, numbers=2)


def _named_by_words(prompt: PromptResult) -> bool:
    return " ".join(prompt.prompt.split()).startswith(re.sub(r"…?( \(\d+\))?$", "", prompt.name))


def _same(prompt: PromptResult) -> str | None:
    if prompt.divergence is None:
        return {True: "identical", False: "differs", None: None}[prompt.figures.identical]
    at = prompt.divergence.token
    place = f"character {prompt.divergence.character}" if at is None else f"token {at}"
    return f"differs at {place}" + (", near tie" if prompt.divergence.near_tie else "")


def _texts(prompts: Sequence[PromptResult]) -> str:
    parts = []
    for p in prompts:
        shown = tag("p", text("Prompt"), class_="soft") + tag("pre", text(shorten(p.prompt, EXCERPT)))
        shown += tag("p", text("With the drafter"), class_="soft") + tag("pre", text(p.text))
        if p.divergence is not None:
            gap = "" if p.divergence.gap is None else f", {p.divergence.gap:.3f} nats apart"
            text_ = f"Without: {p.divergence.expected!r}, with: {p.divergence.found!r}{gap}"
            shown += tag("p", text(text_))
        parts.append(
            tag("details", tag("summary", text(p.name if _named_by_words(p) else f"{p.name}: {_words(p)}")) + shown)
        )
    return tag("details", tag("summary", "Prompts and texts") + "".join(parts)) if parts else ""


def _claimed(result: ValidationResult) -> bool:
    """Whether the speeds were measured well enough to set them side by side."""
    return result.speed is not None and result.speed.speedup is not None


def _no_claim(rounds: int) -> str:
    return f"{'one round' if rounds == 1 else f'{rounds} rounds'}, not a claim"


def speed(result: ValidationResult) -> str:
    runs = [("main", result.total), *((_label(run.label, run.n_max), run.total) for run in result.runs)]
    items = []
    for name, figures in runs:
        if figures.generated:
            items.append(Bar(name, figures.tokens_per_second, number(figures.tokens_per_second, 0) or ""))
            if figures.baseline_tokens_per_second:
                base = figures.baseline_tokens_per_second
                items.append(Bar(name, base, number(base, 0) or "", 1))
    rate = Scale("tokens per second")
    shown = items if _claimed(result) else []  # bars side by side read as a claim
    chart = bars("Speed of each run, one pass", shown, rate, series=("with the drafter", "without"))
    head = ("run", "n-max", "context", "temperature", "acceptance", "mean length", "tok/s", "without", "text")
    rows = [
        (
            run.label + {True: ", thinking", False: ", no thinking", None: ""}[run.thinking],
            run.n_max,
            f"{run.context:,}",
            number(run.temperature, 1),
            percent(run.total.acceptance),
            number(run.total.mean_length),
            number(run.total.tokens_per_second, 1),
            number(run.total.baseline_tokens_per_second, 1),
            texts(run.prompts, ()),
        )
        for run in result.runs
    ]
    others = table(head, rows, f"Other runs (their speeds: {_no_claim(1)})", numbers=1) if rows else ""
    return section("Speed", _measured(result), chart, others)


def _measured(result: ValidationResult) -> str:
    """The rounds and costs behind the verdict on the gain."""
    speed = result.speed
    if speed is None or not speed.passes:
        return ""
    rows = [
        (f"round {i}", number(one.tokens_per_second, 1), number(one.baseline_tokens_per_second, 1))
        for i, one in enumerate(speed.passes, 1)
    ]
    costs = [
        ("a token of the target alone", _ms(speed.target_ms)),
        ("a step of drafting and verifying", _ms(speed.step_ms)),
        ("the drafter's part of a step", _ms(speed.draft_ms)),
        ("tokens a step yields", number(speed.limit)),
    ]
    caption = f"Tokens per second of {speed.prompts} prompts, without and with the drafter in turn"
    costly = "What a step costs"
    if not _claimed(result):
        caption, costly = (f"{words} ({_no_claim(speed.rounds)})" for words in (caption, costly))
    return table(("round", "with", "without"), rows, caption, numbers=1) + facts(costs, costly)


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g} ms"


def _label(label: str, n_max: int) -> str:
    return f"n-max {n_max}" if label == "sweep" else label


def sweep(result: ValidationResult) -> str:
    found = result.sweep
    if found is None:
        return ""
    advice = tag("p", text(f"Recommended here: n-max {found.recommended}; {sweep_claim(found)}."))
    rates = [Bar(f"n-max {p.n_max}", p.tokens_per_second, number(p.tokens_per_second, 0) or "") for p in found.points]
    kept = [Bar(f"n-max {p.n_max}", p.acceptance, percent(p.acceptance, 0) or "") for p in found.points]
    base = result.total.baseline_tokens_per_second
    speed_axis = Scale("tokens per second", line=(base, f"no drafter, {base:,.0f}") if base else None)
    share = SHARE._replace(title="share of drafts accepted")
    measured = all(p.speedup is not None for p in found.points)
    charts = bars("Speed by n-max", rates if measured else [], speed_axis) + bars(
        "Drafts accepted, by n-max", kept, share
    )
    head = ("n-max", "acceptance", "mean length", "tok/s", "speed", "spread")
    rows = [
        (
            p.n_max,
            percent(p.acceptance),
            number(p.mean_length),
            number(p.tokens_per_second, 1),
            None if p.speedup is None else f"{p.speedup:.2f} ×",
            None if p.low is None else f"{number(p.low)} to {number(p.high)}",
        )
        for p in found.points
    ]
    caption = "Sweep" if measured else f"Sweep (speeds: {_no_claim(result.settings.rounds)})"
    return section("Draft length", advice, tag("div", charts, class_="charts"), table(head, rows, caption, numbers=1))


def _types(extras: Extras) -> str:
    if not extras.types:
        return ""
    rows = [(row.type, row.count, size(row.nbytes), number(8 * row.nbytes / row.elements)) for row in extras.types]
    return table(("type", "tensors", "size", "bits per weight"), rows, "Drafter's tensors by type", numbers=1)


def memory(extras: Extras) -> str:
    plan = extras.memory
    if plan is None:
        return ""
    data = plan.json()
    sides = [side for side in ("drafter", "target") if data[side]]
    rows = [
        (name, *(number(data[side][key], 1) for side in sides), number(sum(data[side][key] or 0 for side in sides), 1))
        for name, key in PARTS
        if any(data[side][key] for side in sides)
    ]
    caption = f"MiB at {plan.ctx_size:,} tokens of context, {plan.slots} slots"
    notes = "".join(tag("p", text(note.text), class_="soft") for note in plan.notes)
    return section("Memory", _fits(extras), table(("part", *sides, "pair"), rows, caption, numbers=1), notes)


def _fits(extras: Extras) -> str:
    """What the device held free before the run, and how much of it the pair takes."""
    plan, room = extras.memory, extras.room
    if plan is None:
        return ""
    total = f"The pair needs {size(plan.json()['total_mib'] * MIB)} at {plan.ctx_size:,} tokens of context."
    if room is None:
        return tag("p", text(total))
    found = f" {room.device} had {size(room.free_mib * MIB)} free before the run: "
    if room.context is None:
        return tag("p", text(f"{total}{found}whether it fits cannot be told."))
    bound = ", which is all that the target was trained for: memory is not the limit" if room.trained else ""
    most = f"contexts of up to {room.context:,} tokens fit{bound}." if room.context else "the pair does not fit."
    return tag("p", text(total + found + most))


PARTS = (
    ("weights", "weights_mib"),
    ("KV cache", "kv_mib"),
    ("sliding-window KV cache", "swa_kv_mib"),
    ("compute (estimate)", "compute_mib"),
    ("draft sampling (estimate)", "sampling_mib"),
    ("compute, host (estimate)", "compute_host_mib"),
    ("tapped hidden states, host", "taps_host_mib"),
    ("total", "total_mib"),
)


def checks(extras: Extras) -> str:
    if extras.findings is None:
        return ""
    if not extras.findings:
        return section("Static check", tag("p", "Drafter and target fit: no findings."))
    rows = [(f.name, f.severity, _value(f.drafter), _value(f.target), f.cure) for f in extras.findings]
    return section("Static check", table(("finding", "severity", "drafter", "target", "cure"), rows, "Findings"))


def _value(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _required(name: str, value: float) -> str | None:
    return percent(value) if name == "acceptance" else f"{value:g}"


def thresholds(result: ValidationResult) -> str:
    t = result.thresholds
    rows: list[tuple[str, object]] = [
        ("recorded before the run", t.recorded_at),
        ("broken below", f"acceptance {percent(t.broken_acceptance, 0)} and mean length {t.broken_mean_length}"),
        ("weak below", f"acceptance {percent(t.weak_acceptance, 0)} and mean length {t.weak_mean_length}"),
        ("near tie", f"{t.near_tie} nats"),
    ]
    rows += [(f"required {name.replace('_', ' ')}", _required(name, value)) for name, value in t.required.items()]
    reference = ""
    if result.reference:
        r = result.reference
        compared = [
            ("stored run", PurePath(r.path).name),
            ("its engine", r.engine),
            ("its acceptance", percent(r.acceptance)),
            ("drop", f"{100 * r.drop:.1f} points of {100 * r.tolerance:.1f} allowed"),
            ("prompts with other text", ", ".join(r.differing) or "none"),
            ("same drafter file", "yes" if r.same_drafter else "no"),
            ("same target file", "yes" if r.same_target else "no"),
            ("result", "passed" if r.passed else "failed"),
        ]
        reference = facts(compared, "Against the stored reference")
    return section("Thresholds", facts(rows, "What the verdict rests on"), reference)


def glossary() -> str:
    """The words of this page."""
    terms = [BY_ANCHOR[name] for name in WORDS]
    entries = "".join(tag("dt", text(term.title)) + tag("dd", text(plain(term))) for term in terms)
    return section("Words", tag("dl", entries))

"""The sections of the HTML report, each a function of the result; empty when there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from dflash_convert.measure.speed import DISTURBED, FASTER, NO_GAIN, NOT_MEASURED, SLOWER
from dflash_convert.report.charts import Bar, bars, columns
from dflash_convert.report.extras import Extras
from dflash_convert.report.markup import facts, number, percent, section, size, table, tag, text
from dflash_convert.text import shorten
from dflash_convert.validation.result import HEALTHY, FileFacts, PromptResult, ValidationResult
from dflash_convert.validation.table import gain_lines, sweep_claim
from dflash_convert.validation.verdict import texts

EXCERPT = 400  # characters of a prompt


def header(result: ValidationResult) -> str:
    names = f"{PurePath(result.drafter.path).name} with {PurePath(result.target.path).name}"
    reasons = "".join(tag("li", text(reason)) for reason in result.reasons)
    warnings = "".join(tag("li", text(f"Warning: {warning}")) for warning in (*result.warnings, *result.retries))
    when = f"{result.settings.started_at}, {result.engine.name}"
    parts = [tag("h1", text(names)), tag("p", badges(result)), tag("p", text(when), class_="soft")]
    parts += [tag("p", text(line.strip())) for line in gain_lines(result)]
    if reasons or warnings:
        parts.append(tag("ul", reasons + warnings))
    if result.failure:
        parts.append(tag("p", text(result.failure.message)))
        parts.append(tag("p", text(result.failure.tip)) if result.failure.tip else "")
        parts.append(tag("details", tag("summary", "End of the engine's log") + tag("pre", text(result.failure.log))))
    return tag("header", "".join(parts) + tiles(result))


def badges(result: ValidationResult) -> str:
    """Both verdicts. A healthy pair is green only where nothing speaks against using it here."""
    pair = result.verdict
    good = pair != HEALTHY or result.gain in (FASTER, NOT_MEASURED)
    first = tag("span", text(pair.replace("-", " ")), class_=f"verdict {pair if good else 'plain'}")
    if result.speed is None:
        return first
    words = {FASTER: "faster here", SLOWER: "slower here", NO_GAIN: "no gain here", DISTURBED: "speed disturbed"}
    second = words.get(result.gain, "speed not measured")
    return f"{first} " + tag("span", text(second), class_=f"verdict {result.gain.replace(' ', '-')}")


def tiles(result: ValidationResult) -> str:
    total, speed = result.total, result.speed
    if not total.drafted and not total.generated:
        return ""
    values = [
        ("drafts accepted", percent(total.acceptance)),
        ("mean accepted length", number(total.mean_length)),
        ("greedy text, all runs", texts(result.prompts, result.runs)),
    ]
    if speed and speed.speedup is not None:
        spread = f"{number(speed.low)} to {number(speed.high)}"
        values.insert(2, (f"against no drafter ({spread})", f"{speed.speedup:.2f} ×"))
        values.insert(3, ("tokens per second", number(speed.tokens_per_second, 1)))
    shown = [tag("div", tag("b", text(value)) + text(name), class_="tile") for name, value in values if value]
    return tag("div", "".join(shown), class_="tiles")


def identity(result: ValidationResult) -> str:
    engine, settings = result.engine, result.settings
    run = [
        ("engine", engine.name),
        ("devices", ", ".join(engine.devices)),
        ("n-max", settings.n_max),
        ("context", f"{settings.context:,} tokens"),
        ("draft cache", settings.draft_cache_type),
        ("threads", settings.threads),
        ("GPU layers", settings.gpu_layers),
        ("device", settings.device),
        ("draft device", settings.draft_device),
        ("extra arguments", " ".join(settings.extra_args)),
        ("prompt sets", ", ".join(settings.prompt_sets)),
        ("duration", f"{settings.seconds:.0f} s"),
    ]
    return section("The pair", _file("Drafter", result.drafter), _file("Target", result.target), facts(run, "Run"))


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
    rates = result.total.acceptance_by_position
    by_position = ""
    if rates:
        items = [Bar(str(i + 1), rate, f"{100 * rate:.0f} %") for i, rate in enumerate(rates)]
        by_position = columns("Steps that kept the draft at each block position", items)
    prompts = [Bar(p.name, p.figures.acceptance, percent(p.figures.acceptance, 0) or "") for p in result.prompts]
    by_prompt = bars("Share of accepted drafts by prompt", prompts, top=1.0)
    charts = tag("div", by_position + by_prompt, class_="charts") if by_position or by_prompt else ""
    return section("Acceptance", charts, _prompt_table(result.prompts), _texts(result.prompts))


def _prompt_table(prompts: Sequence[PromptResult]) -> str:
    if not prompts:
        return ""
    head = ("prompt", "set", "prompt tokens", "tok/s", "generated", "accepted", "drafted", "acceptance", "mean", "text")
    rows = [
        (
            p.name,
            p.set,
            p.figures.prompt_tokens,
            number(p.figures.tokens_per_second, 1),
            p.figures.generated,
            p.figures.accepted,
            p.figures.drafted,
            percent(p.figures.acceptance),
            number(p.figures.mean_length),
            _same(p),
        )
        for p in prompts
    ]
    return table(head, rows, "Every prompt of the main run (greedy)", numbers=2)


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
        parts.append(tag("details", tag("summary", text(p.name)) + shown))
    return tag("details", tag("summary", "Prompts and texts") + "".join(parts)) if parts else ""


def speed(result: ValidationResult) -> str:
    runs = [("main", result.total), *((_label(run.label, run.n_max), run.total) for run in result.runs)]
    items = []
    for name, figures in runs:
        if figures.generated:
            items.append(Bar(name, figures.tokens_per_second, number(figures.tokens_per_second, 0) or ""))
            if figures.baseline_tokens_per_second:
                base = figures.baseline_tokens_per_second
                items.append(Bar(name, base, number(base, 0) or "", 1))
    chart = bars("Tokens per second, one pass of each run", items, series=("with the drafter", "without"))
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
    others = table(head, rows, "Other runs", numbers=1) if rows else ""
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
    return table(("round", "with", "without"), rows, caption, numbers=1) + facts(costs, "What a step costs")


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
    charts = bars("Tokens per second by n-max", rates) + bars("Acceptance by n-max", kept, top=1.0)
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
    return section("Draft length", advice, tag("div", charts, class_="charts"), table(head, rows, "Sweep", numbers=1))


def tensors(extras: Extras) -> str:
    if not extras.types:
        return ""
    rows = [(row.type, row.count, size(row.nbytes), number(8 * row.nbytes / row.elements)) for row in extras.types]
    items = [Bar(row.type, row.nbytes, size(row.nbytes)) for row in extras.types]
    head = ("type", "tensors", "size", "bits per weight")
    by_type = table(head, rows, "Drafter's tensors by type", numbers=1)
    return section("Tensors", bars("Size by tensor type", items), by_type)


def memory(extras: Extras) -> str:
    plan = extras.memory
    if plan is None:
        return ""
    data = plan.json()
    names = [
        ("weights", "weights_mib"),
        ("KV cache", "kv_mib"),
        ("sliding-window KV cache", "swa_kv_mib"),
        ("compute (estimate)", "compute_mib"),
        ("draft sampling (estimate)", "sampling_mib"),
        ("compute, host (estimate)", "compute_host_mib"),
        ("tapped hidden states, host", "taps_host_mib"),
        ("total", "total_mib"),
    ]
    sides = [side for side in ("drafter", "target") if data[side]]
    rows = [(name, *(number(data[side][key]) for side in sides)) for name, key in names]
    caption = f"MiB at {plan.ctx_size:,} tokens of context, {plan.slots} slots"
    notes = "".join(tag("p", text(note.text), class_="soft") for note in plan.notes)
    return section("Memory", table(("part", *sides), rows, caption, numbers=1), notes)


def checks(extras: Extras) -> str:
    if extras.findings is None:
        return ""
    if not extras.findings:
        return section("Static check", tag("p", "Drafter and target fit: no findings."))
    rows = [(f.name, f.severity, _value(f.drafter), _value(f.target), f.cure) for f in extras.findings]
    return section("Static check", table(("finding", "severity", "drafter", "target", "cure"), rows, "Findings"))


def _value(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def thresholds(result: ValidationResult) -> str:
    t = result.thresholds
    rows: list[tuple[str, object]] = [
        ("recorded before the run", t.recorded_at),
        ("broken below", f"acceptance {percent(t.broken_acceptance, 0)} and mean length {t.broken_mean_length}"),
        ("weak below", f"acceptance {percent(t.weak_acceptance, 0)} and mean length {t.weak_mean_length}"),
        ("near tie", f"{t.near_tie} nats"),
    ]
    rows += [(f"required {name.replace('_', ' ')}", value) for name, value in t.required.items()]
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

"""The first screen of the report: both verdicts in a sentence, the figures that decide, what to run and what to do."""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import NamedTuple

from dflash_convert.llama import variants
from dflash_convert.measure.speed import DISTURBED, FASTER, MAX_ROUNDS, MIN_ROUNDS, NO_GAIN, NOT_MEASURED, SLOWER
from dflash_convert.naming import server_command
from dflash_convert.report.markup import number, percent, tag, text
from dflash_convert.text import broken_command
from dflash_convert.validation.prompts import N_PREDICT
from dflash_convert.validation.result import BROKEN, ENGINE_FAILURE, HEALTHY, WEAK, ValidationResult
from dflash_convert.validation.verdict import texts

WORDS = {FASTER: "faster here", SLOWER: "slower here", NO_GAIN: "no gain here", DISTURBED: "speed disturbed"}
GOOD, WARN, BAD = "good", "warn", "bad"
COLOUR = {FASTER: GOOD, NO_GAIN: WARN, SLOWER: BAD}


class Tile(NamedTuple):
    """A figure, what it is, what it means, and its colour: ``good``, ``warn``, ``bad`` or None."""

    value: str | None
    name: str
    meaning: str
    colour: str | None = None


def header(result: ValidationResult) -> str:
    names = f"{PurePath(result.drafter.path).name} with {PurePath(result.target.path).name}"
    when = f"{result.settings.started_at}, {result.engine.name}"
    parts = [
        tag("h1", text(names)),
        tag("p", badges(result)),
        tag("p", text(sentence(result)), class_="lead"),
        _beside(result),
        tag("p", text(when), class_="soft"),
        tiles(result),
        banner(result),
        command(result),
        tag("h2", "What to do next") + tag("ul", "".join(tag("li", step) for step in next_steps(result))),
    ]
    if result.failure and result.failure.log:
        log = tag("pre", text(result.failure.log))
        parts.append(tag("details", tag("summary", "End of the engine's log") + log))
    return tag("header", "".join(part for part in parts if part))


def badges(result: ValidationResult) -> str:
    """Both verdicts. A healthy pair is green only where nothing speaks against using it here."""
    pair = result.verdict
    good = pair != HEALTHY or result.gain in (FASTER, NOT_MEASURED)
    first = tag("span", text(pair.replace("-", " ")), class_=f"verdict {pair if good else 'plain'}")
    if result.speed is None:
        return first
    second = WORDS.get(result.gain, "speed not measured")
    return f"{first} " + tag("span", text(second), class_=f"verdict {result.gain.replace(' ', '-')}")


def sentence(result: ValidationResult) -> str:
    """Both verdicts in words: why the pair is what it is, and what it gains."""
    if result.verdict == ENGINE_FAILURE:
        return f"The pair could not be judged: {'; '.join(result.reasons)}."
    first = f"The pair is {result.verdict}: {'; '.join(result.reasons)}."
    return f"{first} {_gain_sentence(result)}".strip()


def _gain_sentence(result: ValidationResult) -> str:
    speed = result.speed
    if speed is None:
        return ""
    why = f" ({speed.reason})" if speed.reason else ""
    if speed.speedup is None:
        said = "disturbed" if result.gain == DISTURBED else "not measured"
        return f"Its speed here was {said}{why}."
    times = f"{speed.speedup:.2f} × the speed without the drafter"
    if result.gain == NO_GAIN:
        return f"On this machine it gains nothing beyond noise: {times}{why}."
    return f"On this machine it is {result.gain}: {times}{why}."


def _beside(result: ValidationResult) -> str:
    """Against the other drafter of the same rounds."""
    lines = result.beside.lines if result.beside else ()
    return tag("ul", "".join(tag("li", text(line.strip())) for line in lines)) if lines else ""


def tiles(result: ValidationResult) -> str:
    total, speed, limits = result.total, result.speed, result.thresholds
    if not total.drafted and not total.generated:
        return ""
    shown = [_acceptance(result), _length(result)]
    if speed and speed.speedup is not None:
        spread = f"{number(speed.low)} to {number(speed.high)} × in {speed.rounds} rounds"
        shown.append(Tile(f"{speed.speedup:.2f} ×", "against no drafter", spread, COLOUR.get(result.gain)))
        without = f"{number(speed.baseline_tokens_per_second, 1)} without the drafter"
        shown.append(Tile(number(speed.tokens_per_second, 1), "tokens per second", without))
    same = texts(result.prompts, result.runs)
    fine = same is None or same.startswith("identical")
    meaning = "with and without the drafter" if fine else f"by more than a near tie of {limits.near_tie:g} nats"
    shown.append(Tile(same, "greedy text, all runs", meaning, GOOD if fine else BAD))
    made = [
        tag(
            "div",
            tag("b", text(tile.value)) + tag("span", text(tile.name)) + tag("small", text(tile.meaning)),
            class_=f"tile {tile.colour}" if tile.colour else "tile",
        )
        for tile in shown
        if tile.value
    ]
    return tag("div", "".join(made), class_="tiles")


def _acceptance(result: ValidationResult) -> Tile:
    limits, value = result.thresholds, result.total.acceptance
    floor = limits.min_acceptance if limits.min_acceptance is not None else limits.weak_acceptance
    word = "required" if limits.min_acceptance is not None else "expected"
    name = "drafts accepted"
    return Tile(percent(value), name, f"at least {percent(floor, 0)} {word}", _colour(result, value >= floor))


def _length(result: ValidationResult) -> Tile:
    limits, value = result.thresholds, result.total.mean_length
    floor = limits.min_mean_length if limits.min_mean_length is not None else limits.weak_mean_length
    meaning = "tokens a step; 1 is no use, and no speed-up is higher"
    return Tile(number(value), "mean accepted length", meaning, _colour(result, value >= floor))


def _colour(result: ValidationResult, reached: bool) -> str:
    """Of a figure that decides on the pair: a missed floor counts as the verdict says."""
    if reached:
        return GOOD
    return BAD if result.verdict == BROKEN or result.exit_code else WARN


def banner(result: ValidationResult) -> str:
    warnings = list(dict.fromkeys((*result.warnings, *result.retries)))
    if not warnings:
        return ""
    head = tag("b", "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings")
    return tag("div", head + tag("ul", "".join(tag("li", text(one)) for one in warnings)), class_="banner", role="note")


def command(result: ValidationResult) -> str:
    """The call that runs the pair, with the draft length that the sweep recommends where it pays."""
    found = next((v for v in variants() if v.spec_type == result.drafter.spec_type), None)
    if found is None or result.verdict in (BROKEN, ENGINE_FAILURE):
        return ""
    swept = result.sweep
    n_max = swept.recommended if swept and swept.pays else result.settings.n_max
    names = [PurePath(file.path).name for file in (result.target, result.drafter)]
    call = "\n".join(broken_command(server_command(names[0], names[1], found, n_max)))
    alone = text("On this machine the target alone is faster: without -md and all that follows.")
    note = tag("p", alone, class_="soft") if result.gain == SLOWER and not (swept and swept.pays) else ""
    return tag("h2", "Run it") + tag("pre", tag("code", text(call)), class_="command") + note


def next_steps(result: ValidationResult) -> list[str]:
    """Markup, a list entry each: a command, and what it is for."""
    drafter, target = (PurePath(file.path).name for file in (result.drafter, result.target))
    check = _call("check", drafter, target)
    if result.verdict == ENGINE_FAILURE:
        tip = result.failure.tip if result.failure else None
        return [f"{_call('doctor')} tells what this machine's engines can do" + (f"; {text(tip)}" if tip else "")]
    if result.verdict == BROKEN:
        return [
            f"{check} finds what headers show: another model's vocabulary, width or depth",
            f"{_call('verify', drafter, 'DRAFTER_DIR')} compares the file with its checkpoint",
            f"{_call('validate', drafter, 'TARGET.gguf')}, when both pass, with the target of the training, which the "
            "drafter's card names. Do not deploy the pair: every draft is work for nothing.",
        ]
    steps = []
    if result.verdict == WEAK:
        own = _call("validate", drafter, target, "--prompts", "YOURS.jsonl")
        steps = [f"{own} tells whether your own prompts do better", f"{check} for what may lower the acceptance"]
    if result.gain == FASTER:
        steps.append(f"{_call('tune', target, drafter)} looks for still better settings on this machine")
    elif result.speed and result.speed.advice:
        steps.append(f"{_faster(result)}: {text(result.speed.advice)}")
    if result.exit_code == 0 and result.verdict == HEALTHY:
        kept = _call("validate", drafter, target, "--save", "RUN.json")
        release = _call("package", drafter, "--target-gguf", target, "--validation", "RUN.json", "--out", "PACKAGE")
        steps.append(f"{release} prepares a release, with the result that {kept} keeps")
    missed = f"{_call('tune', target, drafter)} looks for settings that reach what was required (see Thresholds)"
    return steps or [missed]


def _faster(result: ValidationResult) -> str:
    """What measures a gain that is not known yet, or looks for one."""
    drafter, target = (PurePath(file.path).name for file in (result.drafter, result.target))
    speed = result.speed
    if speed is None or result.gain not in (NOT_MEASURED, DISTURBED):
        return f"{_call('tune', target, drafter)} looks for settings that pay here; by this run"
    more = ("--rounds", str(min(max(2 * speed.rounds, MIN_ROUNDS), MAX_ROUNDS)))
    if result.gain == NOT_MEASURED:
        more = ("--rounds", str(MIN_ROUNDS)) if speed.prompts else ("--n-predict", str(N_PREDICT))
    return f"{_call('validate', drafter, target, *more)} measures the gain"


def _call(*words: str) -> str:
    return tag("code", text(shlex.join(["dflash-convert", *words])))

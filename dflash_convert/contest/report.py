"""What a contest found, as text that fits 80 columns and as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.depth import Prediction
from dflash_convert.contest.hardware import hardware
from dflash_convert.contest.images import Survival
from dflash_convert.contest.judge import Ruling, Standing, Versus
from dflash_convert.contest.prepare import Contest
from dflash_convert.contest.search import Measured
from dflash_convert.contest.tune import Tuned
from dflash_convert.hashing import known_sha256
from dflash_convert.measure.speed import NO_GAIN
from dflash_convert.text import percent
from dflash_convert.validation.net import Net

SCHEMA = 1
NOISE = 0.08  # of one pass against a prediction that rests on others


def table(ruling: Ruling) -> str:
    """One row a candidate; ``*`` marks those that none beats beyond noise."""
    head = f"  {'':<21} {'tok/s':>7} {'x':>5} {'spread':>12} {'length':>6} {'first':>8}  gain"
    rows = [ruling.label, head]
    for each in ruling.standings:
        mark = "*" if each.best else " "
        rows.append(f"{mark} {_name(each.candidate):<21} {each.tokens_per_second:>7.1f} {_figures(each)}")
    return "\n".join(row.rstrip() for row in (*rows, *_versus(ruling)))


def _versus(ruling: Ruling) -> list[str]:
    """The winner against each of the others."""
    rows = [f"  {_name(ruling.winner.candidate)} against, paired by prompt (95 % of draws):"] if ruling.versus else []
    for each in ruling.versus:
        spread = f"{each.paired.low:.2f} to {each.paired.high:.2f}"
        verdict = "beaten" if each.beats else "undecided"
        rows.append(f"  {_name(each.other):<21} {'':>7} {each.paired.ratio:>5.2f} {spread:>12} {'':>15}  {verdict}")
    return rows


def _name(candidate: Candidate, width: int = 21) -> str:
    """Name and settings; with tweaks the settings alone, for a search compares those of one drafter."""
    text = (f" n{candidate.n_max}" if candidate.drafter else "") + (f" p{candidate.p_min:g}" if candidate.p_min else "")
    count = len(candidate.tweaks)
    tail = f"{count} tweaks" if count > 1 else "".join(each.short for each in candidate.tweaks)
    text = f"{text.strip()} + {tail}" if count else candidate.name + text
    return text if len(text) <= width else f"{text[: width - 14]}…{text[-13:]}"


def _figures(each: Standing) -> str:
    first = f"{each.first_ms:,.0f} ms"
    if each.speed is None:
        return f"{'1.00':>5} {'':>12} {'':>6} {first:>8}"
    length = "" if each.length is None else f"{each.length:.2f}"
    if not each.speed.claimed:
        return f"{'':>5} {'':>12} {length:>6} {first:>8}  {each.speed.gain}"
    spread = f"{each.speed.spread[0]:.2f} to {each.speed.spread[1]:.2f}"
    return f"{each.speed.measured:>5.2f} {spread:>12} {length:>6} {first:>8}  {each.speed.gain}"


def advice(ruling: Ruling) -> str:
    """One sentence: what to take for this kind of work, and how sure that is."""
    best = [each for each in ruling.standings if each.best]
    winner = ruling.winner
    if not ruling.pays:
        tried = [s for s in ruling.standings if s.speed is not None and s.speed.gain == NO_GAIN]
        why = "none is faster beyond noise" if tried else "each is slower or could not be measured"
        return f"{ruling.label}: no drafter; {why} on this machine."
    gain = f"{winner.speed.measured:.2f} x" if winner.speed else ""
    settings = f" with {winner.candidate.settings}" if winner.candidate.settings else ""
    own = winner.candidate.name
    equals = [each.candidate for each in best if each is not winner]
    names = [each.name for each in equals]
    others = [each.settings if each.name == own else _told_apart(each, names) for each in equals]
    equal = f"; equal within noise: {', '.join(others)}" if others else ""
    return f"{ruling.label}: {winner.candidate.name}{settings}, {gain} the speed without a drafter{equal}."


def _told_apart(each: Candidate, names: Sequence[str]) -> str:
    return each.name if names.count(each.name) == 1 else f"{each.name}, {each.settings}"


def memory(rulings: Sequence[Ruling], made: Contest) -> str:
    """What every candidate needs by plan, beside what the engine's log told in any load."""
    loads = "" if made.slots == 1 else f", {made.slots} requests at a time"
    rows = [
        f"memory in MiB, {made.context} tokens of context{loads}",
        f"  {'':<36} {'planned':>10} {'by the log':>10} {'largest context':>16}",
    ]
    for each in made.candidates:
        told = _taken(rulings, each)
        shown = "not told" if told is None else f"{told:,.1f}"
        need = made.needs[each.name]
        most = "" if need.largest is None else str(need.largest // made.slots)
        rows.append(f"  {_name(each, 36):<36} {need.mib:>10,.1f} {shown:>10} {most:>16}".rstrip())
    return "\n".join(rows)


def _taken(rulings: Sequence[Ruling], candidate: Candidate) -> float | None:
    standings = [each for ruling in rulings for each in ruling.standings if each.candidate.name == candidate.name]
    return max((each.taken_mib for each in standings if each.taken_mib is not None), default=None)


def memory_json(rulings: Sequence[Ruling], made: Contest) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "planned_mib": round(made.needs[each.name].mib, 2),
            "logged_mib": _rounded(_taken(rulings, each)),
            "largest_context": None if (most := made.needs[each.name].largest) is None else most // made.slots,
        }
        for each in made.candidates
    ]


def standing_json(each: Standing) -> dict[str, Any]:
    speed = each.speed
    return {
        **candidate_json(each.candidate),
        "best": each.best,
        "tokens_per_second": round(each.tokens_per_second, 2),
        "tokens_per_second_each": round(each.each_per_second, 2),
        "gain": None if speed is None else speed.gain,
        "speedup": None if speed is None else _rounded(speed.speedup),
        "low": None if speed is None else _rounded(speed.low),
        "high": None if speed is None else _rounded(speed.high),
        "drafted": each.drafted,
        "accepted": each.accepted,
        "acceptance": round(each.accepted / each.drafted, 6) if each.drafted else 0.0,
        "mean_length": _rounded(each.length),
        "acceptance_by_position": [round(share, 4) for share in each.curve],
        "first_token_ms": round(each.first_ms, 3),
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "methods": list(candidate.methods),
        "file": None if candidate.drafter is None else str(candidate.drafter),
        "bytes": candidate.size,
        "n_max": candidate.n_max if candidate.drafter else None,
        "p_min": candidate.p_min,
        "settings": dict(candidate.extra),
    }


def ruling_json(ruling: Ruling) -> dict[str, Any]:
    return {
        "label": ruling.label,
        "winner": ruling.winner.candidate.name,
        "pays": ruling.pays,
        "advice": advice(ruling),
        "candidates": [standing_json(each) for each in ruling.standings],
        "versus": [versus_json(each) for each in ruling.versus],
    }


def survival(each: Survival) -> str:
    """One sentence: what an image does to drafting."""
    shares = {"before": each.before, "with": each.image, "after": each.after}
    told = ", ".join(f"{'nothing drafted' if s is None else percent(s, 0)} {name}" for name, s in shares.items())
    behind = "survives" if each.survives else "does not survive"
    text = "" if each.follows == each.survives else ", but text after it suffers"
    if each.follows and not each.survives:
        text = ", and text after it is drafted as before"
    elif not each.follows and not each.survives:
        text = ", nor does it come back in text after it"
    return f"images: {each.candidate.name}: {told} an image: drafting {behind} one{text}."


def survival_json(each: Survival) -> dict[str, Any]:
    return {
        **candidate_json(each.candidate),
        "acceptance_before": _rounded(each.before),
        "acceptance_with": _rounded(each.image),
        "acceptance_after": _rounded(each.after),
        "survives": each.survives,
        "text_after_survives": each.follows,
    }


def versus_json(each: Versus) -> dict[str, Any]:
    paired = each.paired
    return {
        "other": candidate_json(each.other),
        "beats": each.beats,
        "ratio": round(paired.ratio, 4),
        "low": round(paired.low, 4),
        "high": round(paired.high, 4),
    }


def head_json(kind: str, made: Contest) -> dict[str, Any]:
    """What ran, on what: enough to know the files and the hardware again."""
    files = dict.fromkeys(each.drafter for each in made.candidates if each.drafter is not None)
    return {
        "schema": SCHEMA,
        "kind": kind,
        "engine": made.engines.info.name,
        "hardware": hardware(made.engines.info.devices),
        "files": [{"path": str(path), "sha256": known_sha256(path)} for path in files],
    }


def compare_json(
    rulings: Sequence[Ruling],
    kinds: Sequence[Ruling],
    made: Contest,
    survived: Sequence[Survival] = (),
    nets: Sequence[Net] = (),
) -> dict[str, Any]:
    return {
        **head_json("comparison", made),
        "work": [ruling_json(each) for each in rulings],
        "by_kind": [ruling_json(each) for each in kinds],
        "net": [asdict(each) for each in nets],
        "images": [survival_json(each) for each in survived],
        "memory": memory_json(rulings, made),
        "refused": [{"name": name, "reason": reason} for name, reason in made.refused.items()],
    }


def tune_text(found: Tuned) -> str:
    """The search in a few lines: what was predicted, what was measured, what it would cost to be wrong."""
    rows = [f"  {'setting':<36} {'predicted':>10} {'measured':>9} {'length':>7} {'ms/step':>8}"]
    for each in found.measured:
        known = found.predicted(each.candidate)
        predicted = "" if known is None else f"{known.speedup:.2f} x"
        shown = f"{each.speedup:.2f} x"
        rows.append(
            f"  {_name(each.candidate, 36):<36} {predicted:>10} {shown:>9} {each.length:>7.2f} {each.step_ms:>8.2f}"
        )
    return "\n".join([*rows, "", table(found.ruling), "", verdict(found), *_surprises(found)])


def _surprises(found: Tuned) -> list[str]:
    """Where the measured speed was not what depth and step time let expect."""
    off = [
        f"n-max {each.candidate.n_max} ({known.speedup:.2f} x predicted, {each.speedup:.2f} x measured)"
        for each in found.measured
        if (known := found.predicted(each.candidate)) is not None and abs(each.speedup / known.speedup - 1) > NOISE
    ]
    return [f"The prediction was off by more than {percent(NOISE, 0)} at {', '.join(off)}."] if off else []


def verdict(found: Tuned) -> str:
    """The settings that pay, or why nothing does."""
    if not found.ruling.pays:
        dearest = max(_plain(found), key=lambda m: m.candidate.n_max)
        times = dearest.step_ms / found.target_ms if found.target_ms else 0.0
        return (
            f"nothing pays on this machine: a step of {dearest.candidate.n_max} drafts costs {times:.1f} tokens of the "
            f"target alone and yields {dearest.length:.2f}"
        )
    best = found.best
    near = sorted({m.candidate.n_max for m in _plain(found) if _near(found, m.speedup)})
    lengths = f"n-max {near[0]} to {near[-1]} are within 5 % of the best here" if len(near) > 1 else ""
    slow = [m for m in _plain(found) if m.candidate.n_max == best.cap and m.candidate.name == best.name]
    top = max(m.speedup for m in _plain(found))
    loss = (
        f"the whole block of {best.cap} is {percent(1 - slow[0].speedup / top, 0)} slower"
        if slow and best.n_max < best.cap
        else ""
    )
    shared = ", ".join(each.label for each in best.tweaks if each.shared)
    also = f"part of the gain may be that of {shared}, which changes runs without a drafter too" if shared else ""
    wrong = "; ".join(part for part in (lengths, loss, also) if part)
    return advice(found.ruling) + (f" {wrong[0].upper()}{wrong[1:]}." if wrong else "")


def _plain(found: Tuned) -> list[Measured]:
    """The runs that differ in depth alone."""
    return [m for m in found.measured if not m.candidate.p_min and not m.candidate.tweaks]


def _near(found: Tuned, speedup: float) -> bool:
    return speedup >= 0.95 * max(m.speedup for m in _plain(found))


def tune_json(found: Tuned, made: Contest) -> dict[str, Any]:
    return {
        **head_json("tuning", made),
        "complete": found.complete,
        "starts": found.starts,
        "exhaustive_starts": found.exhaustive,
        "target_ms": round(found.target_ms, 4),
        "best": candidate_json(found.best),
        "final": ruling_json(found.ruling),
        "verdict": verdict(found),
        "memory": memory_json([found.ruling], made),
        "refused": [{"name": name, "reason": reason} for name, reason in made.refused.items()],
        "measured": [
            {
                **candidate_json(m.candidate),
                "mean_length": round(m.length, 4),
                "step_ms": round(m.step_ms, 4),
                "speedup": round(m.speedup, 4),
            }
            for m in found.measured
        ],
        "predictions": {name: [_prediction(p) for p in each] for name, each in found.predictions.items()},
    }


def _prediction(p: Prediction) -> dict[str, Any]:
    return {
        "n_max": p.n,
        "mean_length": round(p.length, 4),
        "step_ms": round(p.step_ms, 4),
        "speedup": round(p.speedup, 4),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

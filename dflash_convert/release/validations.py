"""What a package keeps of ``validate --json`` documents: counts and verdicts, which any run repeats, and the speed-up
with its hardware where one was measured. Other times and facts of the host stay out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dflash_convert.errors import UsageError
from dflash_convert.jsonfile import parse_result
from dflash_convert.named_file import read_named
from dflash_convert.release.facts import DrafterFacts
from dflash_convert.validation.result import ValidationResult, from_json

MAX_REPORT = 256 << 20  # bytes; prompts and both texts of every run are in it
HOW = "write it with: dflash-convert validate DRAFTER.gguf TARGET.gguf --save RUN.json"
MEMORY = re.compile(r" ?\(\d+ MiB, \d+ MiB free\)$")
SPEEDS = ("speedup", "low", "high")
FLOORS = ("min_acceptance", "min_mean_length")


def read_report(path: Path) -> ValidationResult:
    """What ``validate --save`` kept or ``validate --json`` printed; ConfigError when it is something else."""
    data = read_named(path, MAX_REPORT, "a result of validate", HOW)
    return from_json(parse_result(data, path, HOW), str(path))


def match_reports(
    paths: Iterable[Path], files: Iterable[DrafterFacts], hashes: Mapping[Path, str]
) -> dict[Path, ValidationResult]:
    """Each report beside the drafter it was made with: by SHA-256, or by name and size when it holds none.

    UsageError when a report belongs to none of ``files`` or two belong to one.
    """
    files = list(files)
    found: dict[Path, ValidationResult] = {}
    for path in paths:
        report = read_report(path)
        owner = next((f.path for f in files if _belongs(report, f, hashes[f.path])), None)
        if owner is None:
            raise UsageError(
                f"{path} reports on {Path(report.drafter.path).name} with other bytes than any file of this package",
                tip="validate the packaged files and give those reports",
            )
        if owner in found:
            raise UsageError(f"two validation reports are for {owner.name}", tip="give one report for each file")
        found[owner] = report
    return found


def _belongs(report: ValidationResult, facts: DrafterFacts, digest: str) -> bool:
    drafter = report.drafter
    if drafter.sha256:
        return drafter.sha256 == (digest,)
    return Path(drafter.path).name == facts.path.name and drafter.size == facts.size


def summary(name: str, report: ValidationResult) -> dict[str, Any]:
    """The manifest's entry for one validated file."""
    total, target = report.total, report.target
    return {
        "file": name,
        "verdict": report.verdict,
        "n_max": report.settings.n_max,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "acceptance": total.acceptance,
        "mean_length": total.mean_length,
        "identical": total.identical and all(run.total.identical is not False for run in report.runs),
        "prompts": len(report.prompts),
        "engine": f"{report.engine.kind} {report.engine.build}".strip(),
        "target": {"name": Path(target.path).name, "size": target.size} | _hashes(target.sha256),
        "thresholds": {
            name: getattr(report.thresholds, name) for name in FLOORS if getattr(report.thresholds, name) is not None
        },
    } | _speed(report)


def _hashes(found: tuple[str, ...]) -> dict[str, Any]:
    """Nothing for a target that was not hashed: an empty list would look like a check that passed."""
    return {"sha256": list(found)} if found else {}


def _speed(report: ValidationResult) -> dict[str, Any]:
    """Speed-up and spread (two decimals) and the devices, where a speed-up may be claimed."""
    speed = report.speed
    if speed is None or speed.speedup is None or speed.low is None or speed.high is None:
        return {"gain": report.gain}
    spread = {name: round(value, 2) for name, value in zip(SPEEDS, (speed.speedup, speed.low, speed.high), strict=True)}
    return {"gain": report.gain, **spread, "hardware": _hardware(report.engine.devices)}


def _hardware(devices: Iterable[str]) -> str:
    """The devices without what was free on them."""
    return "; ".join(MEMORY.sub("", device) for device in devices) or "a machine that the engine does not name"

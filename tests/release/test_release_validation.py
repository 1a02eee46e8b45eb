"""What a package takes from validation reports."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from release_tools import tree

from dflash_convert.engine.trace import EngineInfo
from dflash_convert.errors import ConfigError, UsageError, ValidationError, VerificationError
from dflash_convert.head.ranking import from_run
from dflash_convert.release.manifest import verify_manifest
from dflash_convert.release.package import PackageOptions, build_package
from dflash_convert.release.publish import plan_upload
from dflash_convert.validation import reference
from dflash_convert.validation.gain import SpeedReport
from dflash_convert.validation.result import (
    NO_FIGURES,
    FileFacts,
    PromptResult,
    Settings,
    Thresholds,
    ValidationResult,
    Verdict,
)


def report(gguf: Path, verdict: Verdict = "healthy", *, speed: float = 100.0, hashed: bool = True) -> ValidationResult:
    figures = dataclasses.replace(
        NO_FIGURES, drafted=1807, accepted=869, acceptance=0.480908, mean_length=4.29, identical=True,
        tokens_per_second=speed, speedup=speed / 80,
    )  # fmt: skip
    prompt = PromptResult(
        name="p", set="s", prompt="x", n_predict=8, seed=None, sent="x", tokens=(1,), text="y", baseline_text="y",
        divergence=None, figures=figures,
    )  # fmt: skip
    settings = Settings(
        n_max=7, n_max_requested=(), n_max_cap=7, context=4096, long_context=None, temperature=1.0, top_p=1.0, top_k=0,
        seed=1, thinking=None, prompt_sets=(), threads=None, gpu_layers=None, device=None, draft_device=None,
        extra_args=(), draft_cache_type="f16", started_at=f"at {speed}", seconds=speed,
    )  # fmt: skip
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    return ValidationResult(
        verdict=verdict,
        reasons=(f"{speed} tokens/s",),
        warnings=(),
        exit_code=0,
        engine=EngineInfo("embedded", "/somewhere", "4242"),
        drafter=FileFacts(str(gguf), gguf.stat().st_size, "dflash", "d", "Q8_0", sha256=(digest,) if hashed else ()),
        target=FileFacts("/somewhere/T-BF16.gguf", 5, "qwen3", "t", "BF16"),
        thresholds=Thresholds(min_acceptance=0.4, recorded_at=f"at {speed}"),
        settings=settings,
        total=figures,
        prompts=(prompt,),
    )


def save(result: ValidationResult, path: Path) -> Path:
    path.write_text(json.dumps(result.json()))
    return path


def test_figures_reach_manifest_and_card(ggufs: list[Path], tmp_path: Path) -> None:
    saved = save(report(ggufs[0]), tmp_path / "v.json")
    made = build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved,)))
    (entry,) = made.manifest["validation"]
    assert entry["file"] == ggufs[0].name
    assert (entry["verdict"], entry["drafted"], entry["accepted"], entry["n_max"]) == ("healthy", 1807, 869, 7)
    assert entry["target"]["name"] == "T-BF16.gguf"
    assert entry["thresholds"] == {"min_acceptance": 0.4}
    card = (tmp_path / "out" / "README.md").read_text()
    row = "| healthy | 869 of 1,807 (48.1 %) | 4.29 | 7 | identical | `T-BF16.gguf` |"
    assert f"| [`{ggufs[0].name}`](report-{ggufs[0].stem}.html) {row}" in card
    assert any("1 of 2 files have no validation report" in n.text for n in made.notes)


@pytest.mark.parametrize("hashed", [True, False])
def test_speed_and_time_change_the_report_alone(ggufs: list[Path], tmp_path: Path, hashed: bool) -> None:
    """Without a claimed speed-up; the manifest and the sums follow the report."""
    for name, speed in (("one", 90.0), ("two", 110.0)):
        saved = save(report(ggufs[0], speed=speed, hashed=hashed), tmp_path / f"{name}.json")
        build_package(ggufs[:1], tmp_path / name, PackageOptions(validation=(saved,)))
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    changed = {name for name in one if one[name] != two[name]}
    assert changed == {f"report-{ggufs[0].stem}.html", "manifest.json", "SHA256SUMS"}
    assert b"somewhere" not in b"".join(one.values())
    again = build_package(ggufs[:1], tmp_path / "again", PackageOptions(validation=(tmp_path / "one.json",)))
    assert tree(again.directory) == one


def test_the_report_is_part_of_the_package(ggufs: list[Path], tmp_path: Path) -> None:
    saved = save(report(ggufs[0]), tmp_path / "v.json")
    made = build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved,), repo="me/tiny"))
    name = f"report-{ggufs[0].stem}.html"
    assert {e["path"]: e["role"] for e in made.manifest["files"]}[name] == "report"
    page = (tmp_path / "out" / name).read_text()
    assert "s tensors by type" in page
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"[`{ggufs[0].name}`]({name})" in card
    assert "hf download me/tiny " in card
    assert name in (tmp_path / "out" / "SHA256SUMS").read_text()
    files, _ = plan_upload(tmp_path / "out")
    names = [file.name for file in files]
    assert names.index(name) < names.index("README.md")


def test_a_measured_speed_up_is_on_the_card(ggufs: list[Path], tmp_path: Path) -> None:
    speed = SpeedReport(3, 12, speedup=1.9137, low=1.85, high=1.98)
    devices = ("CUDA0: A card (81000 MiB, 80000 MiB free)",)
    measured = report(ggufs[0])
    engine = dataclasses.replace(measured.engine, devices=devices)
    saved = save(dataclasses.replace(measured, gain="faster", speed=speed, engine=engine), tmp_path / "v.json")
    made = build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved,)))
    (entry,) = made.manifest["validation"]
    assert {n: entry[n] for n in ("gain", "speedup", "low", "high", "hardware")} == {
        "gain": "faster", "speedup": 1.91, "low": 1.85, "high": 1.98, "hardware": "CUDA0: A card",
    }  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| 1.91 × (1.85 to 1.98) |" in card
    assert "on CUDA0: A card; other hardware gains more or less" in card


@pytest.mark.parametrize(
    ("lengths", "taken"), [((4.29, 4.28), 1), ((4.29, 4.1), 0), ((4.29, None), 0), ((None, 4.1), 1)]
)
def test_the_smallest_file_that_keeps_the_mean_length_is_recommended(
    ggufs: list[Path], tmp_path: Path, lengths: tuple[float | None, ...], taken: int
) -> None:
    """The files are Q8_0 and the smaller Q4_0."""
    saved = []
    for gguf, length in zip(ggufs, lengths, strict=True):
        found = report(gguf, "broken" if length is None else "healthy")
        found = dataclasses.replace(found, total=dataclasses.replace(found.total, mean_length=length or 1.0))
        saved.append(save(found, tmp_path / f"{gguf.stem}.json"))
    build_package(ggufs, tmp_path / "out", PackageOptions(validation=tuple(saved)))
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"**Take `{ggufs[taken].name}`**" in card
    assert f"-md {ggufs[taken].name}" in card


def test_no_hash_in_a_manifest_is_empty(ggufs: list[Path], tmp_path: Path) -> None:
    """The target of this report was not hashed, and this drafter does not know its config.json."""
    saved = save(report(ggufs[0]), tmp_path / "v.json")
    build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved,)))
    found = list(hashes(json.loads((tmp_path / "out" / "manifest.json").read_text())))
    assert len(found) >= 5
    assert all(re.fullmatch("[0-9a-f]{64}", str(value)) for value in found)


def hashes(value: Any) -> Iterator[Any]:
    """Everything under a name that promises a SHA-256."""
    for name, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        if "sha256" in str(name):
            yield from inner if isinstance(inner, list) and inner else [inner]
        else:
            yield from hashes(inner)


def test_a_report_on_other_bytes_is_refused(ggufs: list[Path], tmp_path: Path) -> None:
    stale = report(ggufs[1])
    stale = dataclasses.replace(stale, drafter=dataclasses.replace(stale.drafter, path=str(ggufs[0])))
    saved = save(stale, tmp_path / "v.json")
    with pytest.raises(UsageError, match="with other bytes than any file"):
        build_package(ggufs[:1], tmp_path / "out", PackageOptions(validation=(saved,)))
    assert not (tmp_path / "out").exists()


def test_two_reports_for_one_file(ggufs: list[Path], tmp_path: Path) -> None:
    saved = save(report(ggufs[0]), tmp_path / "v.json")
    with pytest.raises(UsageError, match="two validation reports"):
        build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved, saved)))


def test_broken_is_packaged_with_a_warning_and_not_published(ggufs: list[Path], tmp_path: Path) -> None:
    saved = save(report(ggufs[0], "broken"), tmp_path / "v.json")
    made = build_package(ggufs, tmp_path / "out", PackageOptions(validation=(saved,)))
    assert any(n.level == "warning" and "publish will refuse" in n.text for n in made.notes)
    assert verify_manifest(tmp_path / "out") == []
    with pytest.raises(ValidationError, match="was validated as broken"):
        plan_upload(tmp_path / "out")
    files, notes = plan_upload(tmp_path / "out", force=True)
    assert files[-1].name == "README.md"
    assert any("was validated as broken" in n.text for n in notes)


@pytest.mark.parametrize("content", ["", "{}", '{"kind": "validation", "schema": 99}', "[" * 100_000])
def test_something_else_is_refused(ggufs: list[Path], tmp_path: Path, content: str) -> None:
    path = tmp_path / "v.json"
    path.write_text(content)
    with pytest.raises(ConfigError):
        build_package(ggufs, tmp_path / "out", PackageOptions(validation=(path,)))


# --- verify --json


def verified(gguf: Path, saved: Path, **changes: object) -> Path:
    kinds = ["F32"] * 14 + ["Q8_0"] * 22
    tensors = [
        {"name": f"t{i}", "type": k, "snr_db": None if k == "F32" else 40.04 + i, "cosine": 1 - i * 1e-6}
        for i, k in enumerate(kinds)
    ]
    row = {"label": gguf.name, "cosine": 0.99912345, "logit_distance": 0.04321, "agreement": 0.95}
    row |= {"acceptance": 0.47, "expected_loss": 0.0512}
    document = {"passed": True, "path": f"/x/{gguf.name}", "keys_checked": 24, "tensors": tensors}
    document["fidelity"] = {"rows": [row], "source_acceptance": 0.5212}
    saved.write_text(json.dumps(document | changes))
    return saved


def test_fidelity_reaches_manifest_and_card(ggufs: list[Path], tmp_path: Path) -> None:
    saved = verified(ggufs[0], tmp_path / "v.json")
    made = build_package(ggufs, tmp_path / "out", PackageOptions(verification=(saved,)))
    assert made.manifest["verification"] == [
        {
            "file": ggufs[0].name,
            "tensors": 36,
            "keys": 24,
            "worst_snr_db": 54.0,
            "worst_cosine": 1.0,
            "fidelity": {
                "cosine": 0.999,
                "logit_distance": 0.043,
                "agreement": 0.95,
                "acceptance": 0.47,
                "expected_loss": 0.051,
            },
        }
    ]
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| `{ggufs[0].name}` | 36 | 54.0 dB | 1.0 | 0.999 | 95.0 % | 5.1 % |" in card
    assert "on the target's own text" in card


def test_drafts_on_noise_reach_neither(ggufs: list[Path], tmp_path: Path) -> None:
    """A report without the target's weights, as an earlier version wrote it: 60.1 % of a file that loses nothing."""
    row = {"label": "x", "cosine": 0.999, "agreement": 0.601, "acceptance": None, "expected_loss": 0.729}
    fidelity = {"rows": [row], "source_acceptance": None}
    saved = verified(ggufs[0], tmp_path / "v.json", fidelity=fidelity)
    made = build_package(ggufs, tmp_path / "out", PackageOptions(verification=(saved,)))
    assert made.manifest["verification"][0]["fidelity"] == {"cosine": 0.999}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "same drafts" not in card
    assert "60.1" not in card
    assert "on random context" in card


def test_verifications_that_do_not_fit(ggufs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    for saved, kind, text in (
        (lambda: verified(ggufs[0], path, passed=False), VerificationError, "differs from its source"),
        (lambda: verified(ggufs[1], path), UsageError, "no file of this package"),  # Q4_0's name, Q8_0's tensors
        (lambda: verified(ggufs[0], path, tensors=3), ConfigError, "not a verification report"),
        (lambda: verified(ggufs[0], path, path=None), ConfigError, "not a verification report"),
    ):
        with pytest.raises(kind, match=text):
            build_package(ggufs, tmp_path / "out", PackageOptions(verification=(saved(),)))
    good = verified(ggufs[0], path)
    with pytest.raises(UsageError, match="as another report is"):
        build_package(ggufs, tmp_path / "out", PackageOptions(verification=(good, good)))
    assert not (tmp_path / "out").exists()


WRONG = [
    (b"<!DOCTYPE html>\n<html></html>", "is an HTML report, not JSON"),
    (b"\xef\xbb\xbf <html>", "is an HTML report, not JSON"),
    (b'{"a": }', "is not JSON: line 1, column 7"),
    (b"\xff\xfe", "is not JSON: it is not UTF-8 text"),
    (b"[" * 100_000, "is not JSON: it is nested too deeply"),
    (b"1" * 5000, "is not JSON: a number has too many digits"),
]


@pytest.mark.parametrize(("data", "told"), WRONG)
@pytest.mark.parametrize("option", ["validation", "verification", "contest", "reference", "run"])
def test_what_is_no_result_is_told_with_the_command_that_writes_one(
    option: str, data: bytes, told: str, ggufs: list[Path], tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    options = PackageOptions(**{option: (path,)} if option not in ("reference", "run") else {})
    read: dict[str, Callable[[], Any]] = {
        "reference": lambda: reference.load(path),
        "run": lambda: from_run(path, 10),
    }
    with pytest.raises(ConfigError) as caught:
        read.get(option, lambda: build_package(ggufs[:1], tmp_path / "out", options))()
    html = data.endswith(b"html>")
    if html or option in (
        "validation",
        "verification",
    ):  # the others' text goes through the checks of any stranger's JSON
        assert told in str(caught.value)
    if html:
        command = {"verification": "verify", "contest": "compare"}.get(option, "validate")
        assert f"dflash-convert {command} " in str(caught.value.tip)
    assert "Expecting" not in str(caught.value)
    assert "codec" not in str(caught.value)

"""`make release`, from a fresh tree: once, up to date, after a change, in parallel, and the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from release_tools import ROOT, repeatable, tree

from dflash_convert.release.manifest import read_manifest, verify_manifest

FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
Make = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make("release", NAME=value, …) with this Python and a fake llama-server, everything below tmp_path."""
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" normal "$@"\n')
    server.chmod(0o755)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # the one difference to a user's call: the checkout's own Python instead of a fresh .venv
        given = {"DFLASH": f"{sys.executable} -m dflash_convert", "OUT": str(tmp_path / "out"), **variables}
        call = ["make", "-f", str(ROOT / "Makefile"), *arguments, *(f"{k}={v}" for k, v in given.items())]
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
        env |= {"PYTHONPATH": str(ROOT), "DFLASH_LLAMA_SERVER": str(server)}
        return subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)

    return run


def outcomes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What became of each job and package, in order."""
    return [line.split("] ")[-1] for line in done.stderr.splitlines() if line.startswith(("[", "package "))]


def test_release(make: Make, tmp_path: Path) -> None:
    done = make("release", JOBS="2")
    assert done.returncode == 0, done.stderr
    assert sorted(outcomes(done)) == ["package tiny-js: done", "tiny-js/Q4_0: done", "tiny-js/Q8_0: done"]
    package = tmp_path / "out/release/packages/tiny-js"
    assert verify_manifest(package) == []
    document = read_manifest(package)
    assert [run["verdict"] for run in document["validation"]] == ["healthy", "healthy"]
    assert all(run["engine"].startswith("llama-server 4242 (abc1234)") for run in document["validation"])
    job = tmp_path / "out/release/jobs/tiny-js/Q8_0"
    assert json.loads((job / "verify.json").read_text())["fidelity"] is not None
    assert json.loads((job / "check.json").read_text())["findings"] == []
    for checked in document["verification"]:  # on the target's own text, with its head
        assert checked["fidelity"]["agreement"] > 0.9
        assert abs(checked["fidelity"]["expected_loss"]) < 0.05
    first = tree(package)

    again = make("release")
    assert outcomes(again) == ["tiny-js/Q8_0: skipped", "tiny-js/Q4_0: skipped", "package tiny-js: skipped"]
    changed = make("release", MIN_ACCEPTANCE="0.1")
    assert outcomes(changed) == ["tiny-js/Q8_0: done", "tiny-js/Q4_0: done", "package tiny-js: done"]
    assert read_manifest(package)["validation"][0]["thresholds"] == {"min_acceptance": 0.1}

    # from nothing, one job after the other, in another place: the same bytes, but for the time in the reports
    done = make("release", OUT=str(tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert repeatable(tree(tmp_path / "other/release/packages/tiny-js")) == repeatable(first)


def test_a_new_type_costs_one_type_and_places_may_have_spaces(make: Make, tmp_path: Path) -> None:
    (tmp_path / "my drafter").symlink_to(ROOT / "fixtures/tiny-js/drafter")
    (tmp_path / "my target-GGUF").symlink_to(ROOT / "fixtures/tiny-js/target")
    places = {"DRAFTER": str(tmp_path / "my drafter"), "TARGET": str(tmp_path / "my target-GGUF")}
    given = {**places, "OUT": str(tmp_path / "my out"), "TARGET_GGUF": ""}
    done = make("release", TYPES="Q8_0", **given)
    assert done.returncode == 0, done.stderr
    done = make("release", TYPES="Q8_0 Q4_0", **given)
    assert outcomes(done) == ["my-target/Q8_0: skipped", "my-target/Q4_0: done", "package my-target: done"]
    assert verify_manifest(tmp_path / "my out/release/packages/my-target") == []


def test_bare_make_prints_the_help_and_does_nothing(make: Make, tmp_path: Path) -> None:
    bare = make()
    assert bare.returncode == 0
    assert bare.stdout == make("help").stdout
    assert "make release" in bare.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "llama-server"]


def test_without_a_target_gguf_nothing_is_validated(make: Make, tmp_path: Path) -> None:
    done = make("release", TARGET_GGUF="", TYPES="Q8_0", SETTINGS='license = "mit"')
    assert done.returncode == 0, done.stderr
    document = read_manifest(tmp_path / "out/release/packages/tiny-js")
    assert (document["validation"], document["license"]["license"]) == ([], "mit")
    (checked,) = document["verification"]
    assert set(checked["fidelity"]) == {"cosine", "logit_distance"}
    assert "same drafts" not in (tmp_path / "out/release/packages/tiny-js/README.md").read_text()


def test_a_failed_step_stops_before_the_package(make: Make, tmp_path: Path) -> None:
    done = make("release", TYPES="Q8_0", MIN_ACCEPTANCE="0.9")
    assert done.returncode != 0
    assert "at least 0.9 was required" in done.stderr
    assert not (tmp_path / "out/release/packages").exists()
    job = tmp_path / "out/release/jobs/tiny-js/Q8_0"
    assert sorted(path.name for path in job.iterdir()) == ["check.json", "validation.json", "verify.json"]
    assert make("release", TYPES="Q8_0").returncode == 0

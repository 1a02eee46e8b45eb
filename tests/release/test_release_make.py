"""The Makefile's pipeline, from a fresh tree: once, up to date, after a change, in parallel, and the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from release_tools import ROOT, tree

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


def steps(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The commands that ran, in order."""
    marker = "-m dflash_convert "
    return [line.split(marker)[1].split()[0] for line in done.stdout.splitlines() if marker in line]


def test_release(make: Make, tmp_path: Path) -> None:
    done = make("-j4", "release")
    assert done.returncode == 0, done.stderr
    ran = steps(done)
    assert sorted(ran) == sorted(
        ["convert", *["quantize"] * 2, "check", *["verify"] * 2, *["validate"] * 2, *["package"] * 2]
    )
    assert ran[0] == "convert"
    package = tmp_path / "out/release/tiny-js"
    assert verify_manifest(package) == []
    document = read_manifest(package)
    assert [run["verdict"] for run in document["validation"]] == ["healthy", "healthy"]
    assert all(run["engine"].startswith("llama-server 4242 (abc1234)") for run in document["validation"])
    first = tree(package)

    assert steps(make("release")) == ["package"]  # only the check; everything is up to date
    assert steps(make("package", MIN_ACCEPTANCE="0.1")) == ["validate", "validate", "package"]

    # from nothing, one step after the other, in another place: the same bytes
    done = make("release", OUT=str(tmp_path / "other"))
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "other/release/tiny-js") == first


def test_a_new_type_costs_one_type(make: Make) -> None:
    assert make("quantize", TYPES="Q8_0").returncode == 0
    assert steps(make("quantize", TYPES="Q8_0 Q4_0")) == ["quantize"]
    assert steps(make("quantize", TYPES="Q8_0 Q4_0")) == []


def test_without_a_target_gguf_nothing_is_validated(make: Make, tmp_path: Path) -> None:
    done = make("release", TARGET_GGUF="", TYPES="Q8_0")
    assert done.returncode == 0, done.stderr
    assert "validate" not in steps(done)
    assert read_manifest(tmp_path / "out/release/tiny-js")["validation"] == []


def test_a_failed_step_stops_before_the_package(make: Make, tmp_path: Path) -> None:
    done = make("release", TYPES="Q8_0", MIN_ACCEPTANCE="0.9")
    assert done.returncode != 0
    assert "at least 0.9 was required" in done.stderr
    assert not (tmp_path / "out/release").exists()
    assert not (tmp_path / "out/work/tiny-js/validate-Q8_0.json").exists()
    assert make("release", TYPES="Q8_0").returncode == 0


def test_reports_are_json(make: Make, tmp_path: Path) -> None:
    assert make("check", "verify", "TYPES=Q8_0").returncode == 0
    work = tmp_path / "out/work/tiny-js"
    for name in ("check.json", "verify-Q8_0.json"):
        assert isinstance(json.loads((work / name).read_text()), dict)

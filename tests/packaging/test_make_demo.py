"""`make demo` sets up what runs and no more, within the 80 columns of any terminal."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from import_graph import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*words: str, **env: str) -> list[str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("COLUMNS", "CI")}
    done = subprocess.run(["make", *words], cwd=ROOT, env=plain | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def installed(*words: str) -> list[str]:
    return [line.split()[-1] for line in make("-n", *words, "VENV=nowhere") if " pip install " in line]


def test_demo_installs_what_runs_and_a_check_what_it_needs_besides() -> None:
    assert installed("demo") == installed("release") == ["'.[engine]'"]
    for target in ("test", "test-fast", "lint", "format", "docs", "faults", "portable", "limits", "differential"):
        assert installed(target) == ["'.[engine]'", "'.[dev]'", "mistral-common"], target


@pytest.mark.parametrize("given", [{}, {"COLUMNS": "120"}])
def test_demo_keeps_to_80_columns(given: dict[str, str], tmp_path: Path) -> None:
    told = tmp_path / "told"
    shown = make("demo", f"DFLASH=echo $$COLUMNS >> {told};:", f"OUT={tmp_path}", **given)
    assert set(told.read_text().split()) == {given.get("COLUMNS", "80")}
    own = [line for line in shown if str(tmp_path) not in line]
    assert max(map(len, own)) <= 80

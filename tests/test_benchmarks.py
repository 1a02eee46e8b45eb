"""benchmarks/speed.py refuses what cannot be measured before it makes gigabytes for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).resolve().parent.parent / "benchmarks" / "speed.py"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--only start,nosuch", "--only nosuch: the parts are start, conversions,"),
        ("--runs 0", "--runs is at least 1"),
        ("--only kernels --large nowhere", "--large nowhere: no such directory"),
    ],
)
def test_what_cannot_be_measured(line: str, told: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SPEED), *line.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []

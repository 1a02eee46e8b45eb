from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Ran(NamedTuple):
    """One run of the command: exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out)
        return data


@pytest.fixture(scope="session")
def cli() -> Callable[..., Ran]:
    """cli('validate', ...) runs the command line in its own process."""

    def run(*args: object) -> Ran:
        command = [sys.executable, "-m", "dflash_convert", *map(str, args)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def drafters(fixtures: Path, tmp_path_factory: pytest.TempPathFactory, cli: Callable[..., Ran]) -> dict[str, Path]:
    """The trained drafter of fixtures/tiny-js, converted by this project: by type name."""
    out = tmp_path_factory.mktemp("drafters")
    types = ("f32", "bf16", "q8_0")
    pair = fixtures / "tiny-js"
    ran = cli(pair / "drafter", "--target-model-dir", pair / "target", *(f"-t{t}" for t in types), "-o", out)
    assert ran.code == 0, ran.err
    paths = dict(zip(types, map(Path, ran.out.split()), strict=True))
    assert all(path.is_file() for path in paths.values())
    return paths

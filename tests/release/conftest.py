from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from release_tools import ROOT, TYPES, Done

from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.release.package import PackageOptions, build_package
from dflash_convert.target import Target


@pytest.fixture(scope="session")
def ggufs(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The bundled drafter in two types."""
    pair = fixtures / "tiny-js"
    options = Options(outtypes=TYPES, target_name="tiny-js")
    conversion = prepare(Source(pair / "drafter"), Target.read(pair / "target"), options)
    paths = conversion.default_paths(tmp_path_factory.mktemp("ggufs"))
    write(conversion, paths)
    return paths


@pytest.fixture(scope="session")
def target_gguf(fixtures: Path) -> Path:
    return fixtures / "tiny-js" / "target-bf16.gguf"


@pytest.fixture(scope="session")
def made(ggufs: list[Path], target_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of both types; copy it before changing it."""
    out = tmp_path_factory.mktemp("made") / "pkg"
    build_package(ggufs, out, PackageOptions(target_gguf=str(target_gguf), license="mit"))
    return out


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    """A package to change at will."""
    return Path(shutil.copytree(made, tmp_path / "pkg"))


@pytest.fixture
def program() -> Callable[..., Done]:
    """program("package", …) -> exit code, stdout and stderr of the real command line in a child process."""

    def run(*arguments: object, **environment: str) -> Done:
        env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        call = [sys.executable, "-m", "dflash_convert", *map(str, arguments)]
        done = subprocess.run(call, capture_output=True, text=True, env=env, check=False, timeout=300)
        return Done(done.returncode, done.stdout, done.stderr)

    return run

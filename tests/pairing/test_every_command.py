"""Every drafter case goes through every command: convert, check, verify, validate and package.

The engine is a fake llama-server; one case of each way of drafting also runs in the embedded engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from make_checkpoints import CASES
from make_target import write_target
from pair_cases import write_fixture_cases

from dflash_convert import llama
from dflash_convert.container.reader import open_gguf
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.engine import embedded
from dflash_convert.pairing import check, errors_of, open_pair
from dflash_convert.release.package import PackageOptions, build_package
from dflash_convert.target import Target
from dflash_convert.validation import options as validation
from dflash_convert.validation import run
from dflash_convert.validation.result import ENGINE_FAILURE, ValidationResult
from dflash_convert.verification.tensors import verify

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"

EMBEDDED = ("dflash", "dspark_speculators", "eagle3", "gemma4_assistant")  # one of each --spec-type


@pytest.fixture(scope="module")
def cases(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_fixture_cases(fixtures, tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def targets(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random targets: qwen3 for all, gemma4 for the assistants that read its keys and values."""
    where, vocabulary = tmp_path_factory.mktemp("targets"), fixtures / "tiny-js" / "target"
    return {arch: write_target(vocabulary, where / f"{arch}.gguf", arch) for arch in ("qwen3", "gemma4")}


@pytest.fixture(scope="module")
def files(cases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("files")

    def convert(name: str) -> Path:
        where = root / name
        if where.is_dir():
            return next(where.glob("*.gguf"))
        conversion = prepare(Source(cases[name] / "drafter"), Target.read(cases[name] / "target"), Options())
        where.mkdir()
        return write(conversion, conversion.default_paths(where), threads=1)[0].path

    return convert


def target_of(file: Path, targets: dict[str, Path]) -> Path:
    return targets["gemma4" if open_gguf(file).architecture == llama.GEMMA4_ASSISTANT.name else "qwen3"]


def validated(file: Path, target: Path, server: Path | None, where: Path) -> ValidationResult:
    (where / "prompts.jsonl").write_text('{"prompt": "one and two", "n_predict": 12}\n')
    options = validation.Options(
        file,
        target,
        prompts=where / "prompts.jsonl",
        quick=True,
        n_max=(3,),
        context=256,
        threads=1,
        llama_server=None if server is None else str(server),
    )
    return run.validate(run.prepare(options))


@pytest.mark.parametrize("name", CASES)
def test_every_command_takes_every_drafter(
    name: str, cases: dict[str, Path], files: Callable[[str], Path], targets: dict[str, Path], tmp_path: Path
) -> None:
    file = files(name)
    target = target_of(file, targets)
    directory = Target.read(cases[name] / "target")
    for drafter in (file, cases[name] / "drafter"):
        for other in (target, directory):
            assert errors_of(check(*open_pair(drafter, other))) == [], (drafter, other)
    assert verify(file, cases[name] / "drafter", directory, threads=1).passed
    gguf = open_gguf(file)
    spec = llama.method(gguf.architecture, gguf.tensors)
    assert spec is not None
    server = tmp_path / "llama-server"
    mode = "normal" if spec.spec_type == "draft-dflash" else spec.spec_type
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" {mode} "$@"\n')
    server.chmod(0o755)
    result = validated(file, target, server, tmp_path)
    assert result.failure is None
    assert result.drafter.spec_type == spec.spec_type
    assert result.total.drafted > 0
    package = build_package([file], tmp_path / "package", PackageOptions(target_gguf=str(target), license="mit"))
    assert package.manifest["spec_type"] == spec.spec_type
    assert package.manifest["files"][0]["path"] == file.name


@pytest.mark.engine
@pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")
@pytest.mark.parametrize("name", EMBEDDED)
def test_validate_runs_each_way_of_drafting(
    name: str, files: Callable[[str], Path], targets: dict[str, Path], tmp_path: Path
) -> None:
    """Random weights draft noise: the pair is broken, but it runs and is judged."""
    file = files(name)
    result = validated(file, target_of(file, targets), None, tmp_path)
    assert result.failure is None
    assert result.verdict != ENGINE_FAILURE
    assert result.total.drafted > 0

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_convert.target import Target


@pytest.fixture(scope="session")
def drafter_gguf(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained pair's drafter, converted to f32 under a name that llama.cpp finds."""
    from dflash_convert.conversion import Options, Source, prepare, write

    pair = fixtures / "tiny-js"
    path = tmp_path_factory.mktemp("pairing") / "dflash-target-F32.gguf"
    write(prepare(Source(pair / "drafter"), Target.read(pair / "target"), Options(outtypes=("F32",))), [path])
    return path


@pytest.fixture(scope="session")
def target_gguf(fixtures: Path) -> Path:
    return fixtures / "tiny-js" / "target-bf16.gguf"

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert.target import Target


@pytest.fixture(scope="session")
def converted(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The trained pair's drafter in a type, each converted once."""
    from dflash_convert.conversion import Options, Source, prepare, write

    directory = tmp_path_factory.mktemp("verify")
    pair = fixtures / "tiny-js"

    def convert(outtype: str) -> Path:
        path = directory / f"dflash-target-{outtype}.gguf"
        if not path.exists():
            options = Options(outtypes=(outtype,))
            write(prepare(Source(pair / "drafter"), Target.read(pair / "target"), options), [path])
        return path

    return convert

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from head_files import PAIR, TARGET

from dflash_convert import convert
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.head.build import Head, plan_head
from dflash_convert.head.matrix import target_matrices
from dflash_convert.quantize import write_file
from dflash_convert.target import Target


@pytest.fixture(scope="session")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Gguf:
    """The trained drafter in bf16, which borrows its target's head."""
    source = convert.Source(PAIR / "drafter"), Target.read(PAIR / "target")
    conversion = convert.prepare(*source, convert.Options(outtypes=("bf16",)))
    place = tmp_path_factory.mktemp("head") / "dflash-tiny-js-BF16.gguf"
    convert.write(conversion, [place], threads=1)
    return open_gguf(place)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Gguf]:
    """make(drafter, Head(...), target) -> the written file, read back."""

    def run(drafter: Gguf, head: Head, target: Path = TARGET) -> Gguf:
        place = tmp_path / f"head-{len(list(tmp_path.iterdir()))}.gguf"
        write_file(plan_head(drafter, target_matrices(target), head), place, threads=1)
        return open_gguf(place)

    return run

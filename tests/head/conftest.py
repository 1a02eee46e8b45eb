from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from head_files import PAIR, TARGET, Make, Run
from make_checkpoints import CASES, Case, write_case
from make_target import write_target

from dflash_convert import conversion as convert
from dflash_convert.cli import main
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.head.base import Base
from dflash_convert.head.build import Head, plan_head
from dflash_convert.head.matrix import target_matrices
from dflash_convert.quantization import write_file
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
        write_file(plan_head(Base.of(drafter), target_matrices(target), head), place, threads=1)
        return open_gguf(place)

    return run


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """run(word, …) -> exit code, stdout, stderr"""

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def case(tmp_path: Path) -> Make:
    """case(case or its name) -> drafter, its target's directory, a random target's GGUF"""

    def write(case: Case | str) -> tuple[Path, Path, Path]:
        where = tmp_path / "case"
        drafter, target = write_case(CASES[case]() if isinstance(case, str) else case, where)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(PAIR / "target" / file, target / file)
        return drafter, target, write_target(PAIR / "target", where / "target.gguf")

    return write

"""The cases of fixtures/parity_cases.py, each written and converted once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import parity_cases
import pytest
from parity_files import WHOLE, Files

from dflash_convert import conversion as convert
from dflash_convert.target import Target

UNTAPPED = ("dflash_deepseek",)  # llama.cpp exports no layer inputs of this target: written only when forced
OWN_PRE = (*WHOLE, "dflash_swa_gemma4", "gemma4_dspark")  # the stand-in's pre-tokenizer needs no name
DIRECT = ("bf16", "f16", "q8_0", "q4_0", "q4_k_m")


@pytest.fixture(scope="module", params=parity_cases.CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def drafter(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("parity")
    parity_cases.write_drafter(name, root / "drafter")
    yield root / "drafter"
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def real(name: str, drafter: Path, shared: Path) -> Files:
    return converted(name, drafter, drafter.with_name("real"), shared / "tokenizers", None, DIRECT)


@pytest.fixture(scope="module")
def small(name: str, drafter: Path) -> Files:
    pre = None if name in OWN_PRE else "qwen2"
    return converted(name, drafter, drafter.with_name("small"), None, pre, ("bf16", "q4_0"))


def converted(
    name: str, drafter: Path, target: Path, tokenizers: Path | None, pre: str | None, types: tuple[str, ...]
) -> Files:
    parity_cases.write_target(name, target, tokenizers)
    options = convert.Options(types, plain=True, model_name=name, pre=pre, force_pair=name in UNTAPPED)
    conversion = convert.prepare(convert.Source(drafter), Target.read(target), options)
    written = convert.write(conversion, convert.output_paths(conversion, target), threads=1)
    return {one.outtype.lower(): one.path for one in written}

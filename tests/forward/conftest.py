"""The trained pair as the reference forwards see it, and as files that llama.cpp loads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dflash_convert.checkpoint import open_checkpoint
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.drafter import Description
from dflash_convert.families.detect import describe
from dflash_convert.forward.load import DrafterSource, drafter_from_description, target_from_gguf
from dflash_convert.forward.target import Target
from dflash_convert.target import Target as TargetSource

Arrays = Mapping[str, NDArray[Any]]
WritePair = Callable[[Sequence[KV], Arrays], tuple[Path, Path]]


@pytest.fixture(scope="session")
def tiny(fixtures: Path) -> Path:
    return fixtures / "tiny-js"


@pytest.fixture(scope="session")
def trace(tiny: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((tiny / "trace.json").read_text())
    return value


@pytest.fixture(scope="session")
def target(tiny: Path) -> Target:
    """The bundled target; its bf16 weights are exact in float32."""
    return target_from_gguf(tiny / "target-bf16.gguf")


@pytest.fixture(scope="session")
def description(tiny: Path) -> Description:
    return describe(open_checkpoint(tiny / "drafter"), TargetSource.read(tiny / "target"))


@pytest.fixture(scope="session")
def source(description: Description) -> DrafterSource:
    return drafter_from_description(description)


@pytest.fixture
def write_pair(tiny: Path, tmp_path: Path, target: Target) -> WritePair:
    """Write (target, drafter) as float32 GGUFs: the drafter from keys and arrays, with the target's vocabulary."""
    original = open_gguf(tiny / "target-bf16.gguf")
    vocabulary = [kv for name, kv in original.keys.items() if name.startswith("tokenizer.ggml.")]

    def write(keys: Sequence[KV], arrays: Arrays) -> tuple[Path, Path]:
        first, second = tmp_path / "target.gguf", tmp_path / "drafter.gguf"
        write_arrays(first, list(original.keys.values()), target.weights)
        head = string("general.architecture", "dflash")
        write_arrays(second, [head, *keys, *vocabulary, u32("tokenizer.ggml.mask_token_id", 503)], arrays)
        return first, second

    return write


def write_arrays(path: Path, keys: Sequence[KV], arrays: Arrays) -> None:
    kinds = {name: TensorType.I64 if a.dtype.kind == "i" else TensorType.F32 for name, a in arrays.items()}
    entries = [Entry(name, a.shape, kinds[name]) for name, a in arrays.items()]
    with GgufOutput(path, entries, layout(keys, entries), force=True) as out:
        for name, array in arrays.items():
            out.write_at(out.offset(name), np.ascontiguousarray(array).view(np.uint8).reshape(-1))
        out.commit()

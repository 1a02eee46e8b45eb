"""What a head of the drafter's own holds: rows copied to the byte, the map, keys, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from head_files import TARGET

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import TensorType
from dflash_convert.errors import FamilyError, PairingError, UsageError
from dflash_convert.head.base import Base
from dflash_convert.head.build import Head, default_name, plan_head
from dflash_convert.head.matrix import target_matrices

IDS = np.array([0, 3, 4, 5, 90, 300, 511], dtype=np.int64)


def rows_of(gguf: Gguf, name: str) -> np.ndarray:
    info = gguf.tensors[name]
    return gguf.data(name).reshape(info.shape[0], -1)


def target_head() -> np.ndarray:
    gguf = open_gguf(TARGET)
    return rows_of(gguf, "output.weight" if "output.weight" in gguf.tensors else "token_embd.weight")


def test_rows_are_the_targets_to_the_byte(drafter: Gguf, make: Callable[..., Gguf]) -> None:
    made = make(drafter, Head(IDS))
    assert np.array_equal(rows_of(made, "output.weight"), target_head()[IDS])
    assert made.tensors["d2t"].type is TensorType.I64
    assert made.data("d2t").reshape(-1).view("<i8").tolist() == IDS.tolist()
    assert made.get("dflash_convert.head.rows") == IDS.size
    assert made.get("general.name") == f"{drafter.get('general.name')}-V{IDS.size}"
    assert made.get("dflash_convert.head.matrix_sha256") == hashlib.sha256(target_head().tobytes()).hexdigest()


def test_everything_else_stays_as_it_was(drafter: Gguf, make: Callable[..., Gguf]) -> None:
    made = make(drafter, Head(IDS))
    for name in drafter.tensors:
        assert np.array_equal(made.data(name), drafter.data(name)), name
    kept = {n: kv.value for n, kv in drafter.keys.items() if n != "general.name" and not n.startswith("tokenizer.")}
    assert all(made.get(name) == value for name, value in kept.items())
    assert list(made.get("tokenizer.ggml.tokens")) == list(drafter.get("tokenizer.ggml.tokens"))


@pytest.mark.shared
def test_a_directory_and_a_gguf_of_the_target_give_the_same_rows(
    shared: Path, drafter: Gguf, make: Callable[..., Gguf]
) -> None:
    made = make(drafter, Head(IDS)), make(drafter, Head(IDS), shared / "pairs" / "tiny-js" / "target")
    assert np.array_equal(*(rows_of(each, "output.weight") for each in made))


def test_a_whole_head_has_no_map_and_embeddings_come_along(drafter: Gguf, make: Callable[..., Gguf]) -> None:
    made = make(drafter, Head(None, own_table=True))
    assert "d2t" not in made.tensors
    assert np.array_equal(rows_of(made, "output.weight"), target_head())
    assert np.array_equal(rows_of(made, "token_embd.weight"), rows_of(open_gguf(TARGET), "token_embd.weight"))


def test_rows_are_encoded_when_a_type_is_asked_for(drafter: Gguf, make: Callable[..., Gguf]) -> None:
    import quant

    made = make(drafter, Head(IDS, head_type="Q8_0"))
    assert made.tensors["output.weight"].type is TensorType.Q8_0
    values = (target_head()[IDS].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(rows_of(made, "output.weight"), quant.quantize(values, "Q8_0"))


def test_a_head_is_chosen_anew_among_its_own_rows(drafter: Gguf, make: Callable[..., Gguf]) -> None:
    first = make(drafter, Head(IDS))
    second = make(first, Head(IDS[[1, 4, 6]]))
    assert np.array_equal(rows_of(second, "output.weight"), target_head()[IDS[[1, 4, 6]]])
    for key in ("source", "matrix_sha256"):  # still the target's rows
        assert second.get(f"dflash_convert.head.{key}") == first.get(f"dflash_convert.head.{key}") is not None
    assert second.get("dflash_convert.head.rows") == 3
    with pytest.raises(UsageError, match="only be chosen among those"):
        make(first, Head(np.array([1, 2], dtype=np.int64)))
    with pytest.raises(UsageError, match="fewer rows"):
        make(first, Head(None))


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([5, 5], "both to token 5"),
        ([-1, 4], "to token -1"),
        ([0, 512], "to token 512 of 512"),
    ],
)
def test_a_map_that_llama_cpp_could_not_use_is_refused(drafter: Gguf, ids: list[int], text: str) -> None:
    with pytest.raises(PairingError, match=text):
        plan_head(Base.of(drafter), target_matrices(TARGET), Head(np.array(ids, dtype=np.int64)))


def test_a_target_of_another_width_is_refused(drafter: Gguf) -> None:
    matrices = target_matrices(TARGET)
    wide = replace(matrices, head=replace(matrices.head, shape=(512, 256)))
    with pytest.raises(PairingError, match="hidden size is 128"):
        plan_head(Base.of(drafter), wide, Head(IDS))


def test_graphs_without_a_map_are_refused_by_name(fixtures: Path) -> None:
    with pytest.raises(FamilyError, match="no reduced head"):
        plan_head(Base.of(open_gguf(TARGET)), target_matrices(TARGET), Head(IDS))


def test_names() -> None:
    assert default_name(Path("a/dflash-x-Q8_0.gguf"), 65536) == "dflash-x-Q8_0-V64k.gguf"
    assert default_name(Path("dflash-x-Q8_0.gguf"), 300) == "dflash-x-Q8_0-V300.gguf"
    assert default_name(Path("dflash-x-Q8_0.gguf"), None) == "dflash-x-Q8_0-own-head.gguf"

"""A target in several files: its head may be in any of them, and each mistake with the files has its sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from head_files import PAIR, TARGET, Run, rewritten

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, ValueType
from dflash_convert.head.build import Head

IDS = np.arange(100, 400, dtype=np.int64)
COUNT = 3


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The target as gguf-split writes it: keys in the first part, the output matrix in the last."""
    whole = open_gguf(TARGET)
    names = [name for name in whole.tensors if name != "output.weight"]
    groups = [names[: len(names) // 2], names[len(names) // 2 :], ["output.weight"]]
    places = []
    for number, group in enumerate(groups):
        extra = [KV("split.no", ValueType.UINT16, number), KV("split.count", ValueType.UINT16, COUNT)]
        extra.append(KV("split.tensors.count", ValueType.INT32, len(whole.tensors)))
        keys = [*(whole.keys.values() if number == 0 else ()), *extra]
        place = tmp_path / f"target-{number + 1:05d}-of-{COUNT:05d}.gguf"
        places.append(rewritten(whole, place, only=group, all_keys=keys))
    return places


def test_rows_of_a_split_target_are_those_of_the_whole(
    drafter: Gguf, make: Callable[..., Gguf], shards: list[Path]
) -> None:
    whole, split = make(drafter, Head(IDS, own_table=True)), make(drafter, Head(IDS, own_table=True), shards[0])
    for name in ("output.weight", "token_embd.weight", "d2t"):
        assert np.array_equal(whole.data(name), split.data(name)), name
    digest = hashlib.sha256(open_gguf(TARGET).data("output.weight").tobytes()).hexdigest()
    assert split.get("dflash_convert.head.matrix_sha256") == whole.get("dflash_convert.head.matrix_sha256") == digest


def test_head_convert_check_and_verify_take_the_first_part(
    drafter: Gguf, shards: list[Path], run: Run, tmp_path: Path
) -> None:
    made, together = tmp_path / "dflash-made.gguf", tmp_path / "dflash-together.gguf"
    code, _, err = run("head", drafter.path, shards[1], made, "--full")  # any part stands for the whole
    assert code == 0, err
    source = ("convert", PAIR / "drafter", "--target-model-dir", PAIR / "target", "-t", "bf16", "-o", together)
    code, _, err = run(*source, "--target-gguf", shards[0], "--full")
    assert code == 0, err
    assert open_gguf(made).data("output.weight").tobytes() == open_gguf(together).data("output.weight").tobytes()
    code, out, _ = run("check", made, shards[0])
    assert code == 0, out
    call = ("verify", made, PAIR / "drafter", "--target-model-dir", PAIR / "target", "--target-gguf")
    code, _, err = run(*call, shards[0])
    assert (code, "not at hand" in err) == (0, False), err
    shards[-1].write_bytes(shards[-1].read_bytes()[:-64] + bytes(64))  # one row is another one
    code, _, err = run(*call, shards[0])
    assert (code, "output.weight" in err) == (5, True), err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda parts: parts[2].unlink() or parts[0], "is missing"),
        (lambda parts: parts[0].rename(parts[0].with_name("renamed.gguf")), "split.count is 3"),
    ],
)
def test_parts_that_do_not_make_a_target(
    drafter: Gguf, shards: list[Path], change: Callable[[list[Path]], Path], text: str, run: Run, tmp_path: Path
) -> None:
    code, _, err = run("head", drafter.path, change(shards), tmp_path / "out.gguf", "--full")
    assert (code, text in err) == (3, True), err
    assert not (tmp_path / "out.gguf").exists()

"""diff shows what differs and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from verify_files import Keys, Tensors, rewrite

from dflash_convert.container.types import ValueType as V
from dflash_convert.container.types import array, string, u32
from dflash_convert.verification.diff import KeyDiff, diff

Convert = Callable[[str], Path]


def test_a_file_is_identical_to_itself(converted: Convert) -> None:
    result = diff(converted("BF16"), converted("BF16"))
    assert result.identical
    assert result.equal_tensors == 36


def test_encodings_differ_in_matrices_and_file_type(converted: Convert) -> None:
    result = diff(converted("BF16"), converted("Q8_0"))
    assert result.keys == (KeyDiff("general.file_type", "32", "7"),)
    assert len(result.tensors) == 22
    assert result.equal_tensors == 14
    for tensor in result.tensors:
        assert tensor.snr_db is not None
        assert 44 < tensor.snr_db < 47


def test_equal_values_in_another_type_have_no_error(converted: Convert) -> None:
    (first, *_) = diff(converted("BF16"), converted("F32")).tensors
    assert (first.rmse, first.max_error, first.cosine) == (0.0, 0.0, pytest.approx(1.0))


def test_keys_tensors_and_items_are_named(converted: Convert, tmp_path: Path) -> None:
    def change(keys: Keys, tensors: Tensors) -> None:
        tokens = list(keys["tokenizer.ggml.tokens"].value)
        tokens[5] = "other"
        keys["tokenizer.ggml.tokens"] = array("tokenizer.ggml.tokens", V.STRING, tokens)
        keys["dflash.block_size"] = string("dflash.block_size", "8")
        del keys["dflash.target_layers"]
        keys["new"] = u32("new", 1)
        tensors.pop("fc.weight")

    a = converted("F32")
    result = diff(a, rewrite(a, tmp_path / "b.gguf", change))
    found = {key.name: (key.a, key.b) for key in result.keys}
    token = found.pop("tokenizer.ggml.tokens")
    assert token[1] == "512 items, 5: 'other'"
    assert found == {
        "dflash.block_size": ("8 (UINT32)", "'8' (STRING)"),
        "dflash.target_layers": ("[2, 4, 5]", None),
        "new": (None, "1"),
    }
    assert [(t.name, t.a, t.b) for t in result.tensors] == [("fc.weight", "F32 128 x 384", None)]


def test_order_counts(converted: Convert, tmp_path: Path) -> None:
    def change(keys: Keys, tensors: Tensors) -> None:
        tensors["fc.weight"] = tensors.pop("fc.weight")

    a = converted("F32")
    result = diff(a, rewrite(a, tmp_path / "b.gguf", change))
    assert (result.keys, result.tensors, result.order, result.identical) == ((), (), False, False)


def test_the_command(converted: Convert) -> None:
    call = [sys.executable, "-m", "dflash_convert", "diff", converted("BF16"), converted("Q4_0")]
    done = subprocess.run([*call, "--json"], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["identical"], len(document["tensors"])) == (0, False, 22)
    table = subprocess.run(call, capture_output=True, text=True, check=False)
    assert table.stdout.count("\ntensor  ") == 22
    assert "1 keys and 22 tensors differ" in table.stderr

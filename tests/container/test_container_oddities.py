"""Unusual files that the format allows: they load, with the right values."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_builder import ARCH, BOOL, F32, ONE, SCALAR, STRING, U32, array, gguf, scalar, string, tensor, text

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import BLOCK, TensorType, ValueType


def load(tmp_path: Path, data: bytes) -> Gguf:
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    return open_gguf(path)


def test_nothing_at_all(tmp_path: Path) -> None:
    file = load(tmp_path, gguf())
    assert (dict(file.keys), dict(file.tensors), file.architecture) == ({}, {}, "")


@pytest.mark.parametrize("padding", [0, 8, 32])
def test_keys_without_tensors(padding: int, tmp_path: Path) -> None:
    """Writers differ in whether they pad the end of a file that has no tensors."""
    file = load(tmp_path, gguf([ARCH], alignment=1) + bytes(padding))
    assert file.architecture == "dflash"
    assert not file.tensors


def test_empty_texts_and_arrays(tmp_path: Path) -> None:
    keys = [string("s", ""), array("t", STRING, 0, b""), array("n", F32, 0, b""), array("e", STRING, 2, text("") * 2)]
    file = load(tmp_path, gguf(keys))
    assert [file.get(name) for name in "s"] == [""]
    assert list(file.get("t")) == []
    assert list(file.get("n")) == []
    assert list(file.get("e")) == ["", ""]


def test_texts_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    """Vocabularies hold byte tokens: a value, unlike a name, may be any bytes."""
    file = load(tmp_path, gguf([string("s", b"\xff\x00a"), array("t", STRING, 1, text(b"\xc3"))]))
    assert file.get("s").encode("utf-8", "surrogateescape") == b"\xff\x00a"
    assert file.get("t")[0].encode("utf-8", "surrogateescape") == b"\xc3"
    assert [item.encode("utf-8", "surrogateescape") for item in file.get("t")] == [b"\xc3"]


def test_single_items_of_a_string_array(tmp_path: Path) -> None:
    """Before and after all of them are decoded."""
    words = ["", "a", "ä€", "", "last"]
    strings = load(tmp_path, gguf([array("t", STRING, len(words), b"".join(map(text, words)))])).get("t")
    for _ in range(2):
        assert [strings[i] for i in range(-5, 5)] == words * 2
        assert strings[1:4] == words[1:4]
        for outside in (5, -6):
            with pytest.raises(IndexError):
                strings[outside]
        assert list(strings) == words


def test_every_value_type_at_its_limits(tmp_path: Path) -> None:
    limits: dict[int, tuple[float, float]] = {
        0: (0, 255),
        1: (-128, 127),
        2: (0, 65535),
        3: (-32768, 32767),
        4: (0, 2**32 - 1),
        5: (-(2**31), 2**31 - 1),
        6: (-math.inf, 2.0**-149),
        7: (0, 1),
        10: (0, 2**64 - 1),
        11: (-(2**63), 2**63 - 1),
        12: (-1.5e308, 5e-324),
    }
    keys = [scalar(f"{kind}.{i}", kind, value) for kind, both in limits.items() for i, value in enumerate(both)]
    keys += [array(f"{k}.all", k, 2, struct.pack("<2" + SCALAR[k], *both)) for k, both in limits.items()]
    file = load(tmp_path, gguf(keys))
    for kind, both in limits.items():
        assert (file.get(f"{kind}.0"), file.get(f"{kind}.1")) == both
        assert list(file.get(f"{kind}.all")) == list(both)
        assert file.keys[f"{kind}.0"].type is ValueType(kind)
        assert file.keys[f"{kind}.all"].item is ValueType(kind)
        if kind != BOOL:
            assert file.get(f"{kind}.all").numpy().tolist() == list(both)


def test_nan_is_a_value(tmp_path: Path) -> None:
    assert math.isnan(load(tmp_path, gguf([scalar("x", F32, math.nan)])).get("x"))


@pytest.mark.parametrize("alignment", [8, 16, 64, 4096, 1 << 20])
def test_other_alignments(alignment: int, tmp_path: Path) -> None:
    keys = [scalar("general.alignment", U32, alignment)]
    step = 32 + -32 % alignment
    values = np.arange(8, dtype="<f4").tobytes()
    data = values + bytes(step - 32) + values
    file = load(tmp_path, gguf(keys, [ONE, tensor("b", [8], 0, step)], data, alignment=alignment))
    assert file.alignment == alignment
    assert file.data("b").view("<f4").tolist() == [list(range(8))]
    assert file.tensors["b"].offset % alignment == 0


def test_last_tensor_may_end_unpadded(tmp_path: Path) -> None:
    file = load(tmp_path, gguf([ARCH], [tensor("a", [3])], bytes(12)))
    assert file.tensors["a"].nbytes == 12
    assert file.data("a").shape == (1, 12)


def test_names_at_the_limit(tmp_path: Path) -> None:
    file = load(tmp_path, gguf([string("k" * 65535, "v")], [tensor("n" * 63, [8])], bytes(32)))
    assert file.get("k" * 65535) == "v"
    assert list(file.tensors) == ["n" * 63]


def test_four_dimensions_in_numpy_order(tmp_path: Path) -> None:
    file = load(tmp_path, gguf([ARCH], [tensor("a", [8, 2, 3, 4])], bytes(768)))
    assert file.tensors["a"].shape == (4, 3, 2, 8)
    assert file.tensors["a"].rows == 24
    assert file.data("a").shape == (24, 32)


@pytest.mark.parametrize("kind", list(TensorType), ids=lambda kind: kind.name)
def test_every_tensor_type_of_one_block(kind: TensorType, tmp_path: Path) -> None:
    block, size = BLOCK[kind]
    file = load(tmp_path, gguf([ARCH], [tensor("a", [block, 2], kind)], bytes(2 * size)))
    assert file.tensors["a"].nbytes == 2 * size
    assert file.data("a").shape == (2, size)


def test_architecture_of_a_wrong_type_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, gguf([scalar("general.architecture", U32, 7)])).architecture == ""


def test_agrees_with_the_gguf_package(fixtures: Path) -> None:
    """Keys, values and tensors of a real file as the reference's own reader gives them."""
    from gguf import GGUFReader

    path = fixtures / "tiny-js" / "target-bf16.gguf"
    ours, theirs = open_gguf(path), GGUFReader(path)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours.keys) == names
    for name in names:
        value = ours.get(name)
        assert (list(value) if ours.keys[name].item is not None else value) == theirs.fields[name].contents()
    assert [(t.name, t.type.value, t.offset, t.nbytes) for t in ours.tensors.values()] == [
        (t.name, t.tensor_type.value, t.data_offset, t.n_bytes) for t in theirs.tensors
    ]
    for t in theirs.tensors:
        assert ours.data(t.name).tobytes() == t.data.tobytes()

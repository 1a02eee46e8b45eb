"""The writer: what it writes reads back, and what the format forbids is refused before a byte is written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType, ValueType, array, f32, string, u32, u64
from dflash_convert.container.writer import Entry, GgufOutput, Layout, layout
from dflash_convert.errors import ContainerError, OutputError

pytestmark = pytest.mark.usefixtures("system")


def write(path: Path, keys: list[KV], tensors: list[tuple[Entry, bytes]], *, force: bool = False) -> None:
    entries = [entry for entry, _ in tensors]
    plan = layout(keys, entries)
    with GgufOutput(path, entries, plan, force=force) as out:
        for entry, data in tensors:
            out.write_at(out.offset(entry.name), data)
        out.commit()


@pytest.mark.parametrize("name", ["target-bf16.gguf"])
def test_a_real_file_rewritten_is_the_same_file(name: str, fixtures: Path, tmp_path: Path) -> None:
    source = open_gguf(fixtures / "tiny-js" / name)
    tensors = [(Entry(t.name, t.shape, t.type), source.data(t.name).tobytes()) for t in source.tensors.values()]
    write(tmp_path / "copy.gguf", list(source.keys.values()), tensors)
    assert (tmp_path / "copy.gguf").read_bytes() == (fixtures / "tiny-js" / name).read_bytes()


def numbers(kind: ValueType) -> st.SearchStrategy[Any]:
    bits = {"UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64, "INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64}
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind is ValueType.STRING:
        return st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
    if kind.name.startswith("FLOAT"):
        return st.floats(width=int(kind.name[5:]), allow_nan=False)  # type: ignore[arg-type]
    low, high = (0, bits[kind.name]) if kind.name.startswith("U") else (-(2 ** (bits[kind.name] - 1)), 0)
    high = 2 ** bits[kind.name] - 1 if low == 0 else -low - 1
    return st.integers(low, high)


@st.composite
def any_keys(draw: st.DrawFn) -> list[KV]:
    names = draw(
        st.lists(
            st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["Cs"])), unique=True, max_size=6
        )
    )
    keys = []
    for name in names:
        kind = draw(st.sampled_from([kind for kind in ValueType if kind is not ValueType.ARRAY]))
        if draw(st.booleans()):
            keys.append(KV(name, ValueType.ARRAY, draw(st.lists(numbers(kind), max_size=5)), kind))
        else:
            keys.append(KV(name, kind, draw(numbers(kind))))
    return [kv for kv in keys if kv.name != "general.alignment"]


@given(any_keys(), st.lists(st.integers(1, 70), max_size=4))
@settings(max_examples=80)
def test_whatever_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, keys: list[KV], rows: list[int]
) -> None:
    path = tmp_path_factory.mktemp("roundtrip") / "x.gguf"
    tensors = [(Entry(f"t{i}", (n,), TensorType.F16), bytes([i + 1]) * 2 * n) for i, n in enumerate(rows)]
    write(path, keys, tensors)
    found = open_gguf(path)
    assert list(found.keys) == [kv.name for kv in keys]
    for kv in keys:
        assert found.keys[kv.name].type is kv.type
        assert found.keys[kv.name].item is kv.item
        value = found.get(kv.name)
        assert (list(value) if kv.item is not None else value) == kv.value
    assert {name: found.data(name).tobytes() for name in found.tensors} == {e.name: data for e, data in tensors}


REFUSED_KEYS: dict[str, tuple[list[KV], str]] = {
    "empty name": ([u32("", 1)], "empty or occurs twice"),
    "name twice": ([u32("a", 1), string("a", "x")], "key 'a' is empty or occurs twice"),
    "name too long": ([u32("k" * 65536, 1)], "is longer than 65535 bytes"),
    "negative UINT32": ([u32("a", -1)], "a = -1 does not fit its type UINT32"),
    "UINT32 of 2^32": ([u32("a", 1 << 32)], "does not fit its type UINT32"),
    "UINT64 of 2^64": ([u64("a", 1 << 64)], "does not fit its type UINT64"),
    "FLOAT32 of 1e39": ([f32("a", 1e39)], "does not fit its type FLOAT32"),
    "INT32 item of 2^31": ([array("a", ValueType.INT32, [0, 1 << 31])], "an item of a does not fit its type INT32"),
    "FLOAT32 item of 1e39": ([array("a", ValueType.FLOAT32, [1e39])], "an item of a does not fit its type FLOAT32"),
    "text as a number": ([array("a", ValueType.INT32, ["1"])], "an item of a does not fit its type INT32"),
    "array without a type": ([KV("a", ValueType.ARRAY, [1])], "array key 'a' has no item type"),
    "array of arrays": ([array("a", ValueType.ARRAY, [[1]])], "'a' is an array of arrays"),
    "half a character": ([string("a", "\ud83d")], r"a contains an unpaired surrogate \('\\ud83d'\)"),
    "half a character in a list": (
        [array("a", ValueType.STRING, ["ok", "\ude00"])],
        "an item of a contains an unpaired",
    ),
    "half a character in a name": ([u32("\ud83d", 1)], "key name contains an unpaired surrogate"),
    "alignment 24": ([u32("general.alignment", 24)], "general.alignment 24 is not a UINT32 power of two"),
    "alignment 2^30": ([u32("general.alignment", 1 << 30)], "general.alignment 1073741824"),
    "alignment as text": ([string("general.alignment", "32")], "general.alignment '32' is not"),
}


@pytest.mark.parametrize("defect", REFUSED_KEYS)
def test_keys_that_the_format_forbids(defect: str) -> None:
    keys, words = REFUSED_KEYS[defect]
    with pytest.raises(ContainerError, match=words):
        layout(keys, [])


REFUSED_TENSORS: dict[str, tuple[list[Entry], str]] = {
    "empty name": ([Entry("", (8,), TensorType.F32)], "is not 1 to 63 bytes long"),
    "name of 64 bytes": ([Entry("n" * 64, (8,), TensorType.F32)], "is not 1 to 63 bytes long"),
    "name of 32 characters in 64 bytes": ([Entry("é" * 32, (8,), TensorType.F32)], "is not 1 to 63 bytes long"),
    "name twice": ([Entry("a", (8,), TensorType.F32)] * 2, "tensor 'a' occurs twice"),
    "no dimensions": ([Entry("a", (), TensorType.F32)], r"shape \[\]: 1 to 4 dimensions"),
    "five dimensions": ([Entry("a", (1, 1, 1, 1, 1), TensorType.F32)], "1 to 4 dimensions"),
    "a dimension of zero": ([Entry("a", (0, 8), TensorType.F32)], r"shape \[0, 8\]"),
    "a negative dimension": ([Entry("a", (-1, 8), TensorType.F32)], r"shape \[-1, 8\]"),
    "rows that no block fills": ([Entry("a", (2, 40), TensorType.Q8_0)], "have 40 elements, which Q8_0 cannot hold"),
}


@pytest.mark.parametrize("defect", REFUSED_TENSORS)
def test_tensors_that_the_format_forbids(defect: str) -> None:
    entries, words = REFUSED_TENSORS[defect]
    with pytest.raises(ContainerError, match=words):
        layout([], entries)


def test_names_at_the_limit(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", [u32("k" * 65535, 1)], [(Entry("n" * 63, (1,), TensorType.F32), bytes(4))])
    found = open_gguf(tmp_path / "x.gguf")
    assert list(found.keys) == ["k" * 65535]
    assert list(found.tensors) == ["n" * 63]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_key_is_obeyed(alignment: int, tmp_path: Path) -> None:
    tensors = [(Entry(name, (3,), TensorType.F32), name.encode() * 12) for name in "ab"]
    write(tmp_path / "x.gguf", [u32("general.alignment", alignment)], tensors)
    found = open_gguf(tmp_path / "x.gguf")
    assert [t.offset % alignment for t in found.tensors.values()] == [0, 0]
    assert found.data("b").tobytes() == b"b" * 12


def test_infinite_numbers_are_values(tmp_path: Path) -> None:
    write(tmp_path / "x.gguf", [f32("a", -math.inf)], [])
    assert open_gguf(tmp_path / "x.gguf").get("a") == -math.inf


def test_a_damaged_file_is_not_published(tmp_path: Path) -> None:
    """The file is read back with the strict reader first: a header overwritten meanwhile is noticed."""
    path = tmp_path / "x.gguf"
    entries = [Entry("a", (8,), TensorType.F32)]
    with GgufOutput(path, entries, layout([], entries)) as out:
        out.write_at(0, b"GGML")
        with pytest.raises(ContainerError, match="not a GGUF file"):
            out.commit()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_as_planned_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    entries, others = [Entry("a", (8,), TensorType.F32)], [Entry("b", (8,), TensorType.F32)]
    plan = layout([], entries)
    with GgufOutput(path, entries, plan) as out:
        out.write_at(0, layout([], others).header)
        with pytest.raises(OutputError, match="does not read back as planned"):
            out.commit()
    assert list(tmp_path.iterdir()) == []


def test_layout_gives_the_exact_size(tmp_path: Path) -> None:
    entries = [Entry("a", (5, 32), TensorType.Q8_0), Entry("b", (3,), TensorType.F32)]
    plan: Layout = layout([string("k", "v")], entries)
    write(tmp_path / "x.gguf", [string("k", "v")], [(entries[0], bytes(170)), (entries[1], bytes(12))])
    assert (tmp_path / "x.gguf").stat().st_size == plan.size
    assert plan.offsets["b"] == len(plan.header) + 192

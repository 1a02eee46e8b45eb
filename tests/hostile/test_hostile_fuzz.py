"""The fuzzing harnesses, bounded: their corpus is replayed, and hypothesis makes new inputs of the right form."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from harness import guarded
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dflash_convert.errors import ContainerError

ROOT = Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "fuzz" / "corpus"
READERS = ("gguf", "safetensors", "config", "tokenizer", "torchfile")
BOUNDED = settings(max_examples=150, suppress_health_check=list(HealthCheck))

Reader = Callable[[bytes], None]


@lru_cache
def reader(name: str) -> Reader:
    """One harness's reader: lets the project's own errors pass and raises everything else."""
    return guarded(importlib.import_module(f"fuzz_{name}").reader())


@pytest.mark.parametrize("name", READERS)
def test_corpus(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert len(files) >= 10
    for file in files:
        try:
            reader(name)(file.read_bytes())
        except Exception as error:
            raise AssertionError(f"{file.name}: {error!r}") from error


def test_the_harness_notices() -> None:
    """An error that is not the project's escapes, as does a message of two lines."""

    def raises(error: Exception) -> Callable[[bytes], None]:
        def read(_: bytes) -> None:
            raise error

        return read

    guarded(raises(ContainerError("one sentence")))(b"")
    with pytest.raises(ZeroDivisionError):
        guarded(raises(ZeroDivisionError()))(b"")
    with pytest.raises(ValueError, match="two lines"):
        guarded(raises(ContainerError("two\nlines")))(b"")


u64 = st.one_of(st.integers(0, 40), st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 32, 2**64 - 1]))
u32 = st.one_of(st.integers(0, 45), st.sampled_from([2**16, 2**31, 2**32 - 1]))
text = st.builds(
    lambda data, lie: struct.pack("<Q", len(data) if lie is None else lie) + data,
    st.binary(max_size=9),
    st.none() | u64,
)
keys = st.builds(
    lambda name, kind, value: name + struct.pack("<I", kind) + value, text, st.integers(0, 13), st.binary(max_size=30)
)
arrays = st.builds(
    lambda name, item, count, value: name + struct.pack("<IIQ", 9, item, count) + value,
    text,
    st.integers(0, 13),
    u64,
    st.binary(max_size=40),
)
tensors = st.builds(
    lambda name, dims, kind, at: name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at),
    text,
    st.lists(u64, max_size=5),
    u32,
    st.integers(0, 3).map(lambda n: 32 * n) | u64,
)


@given(st.lists(keys | arrays, max_size=3), st.lists(tensors, max_size=3), u64, u64, st.binary(max_size=200))
@BOUNDED
def test_gguf(some_keys: list[bytes], some_tensors: list[bytes], n_keys: int, n_tensors: int, data: bytes) -> None:
    """Well-formed records with ill-chosen numbers; the counts are right half the time."""
    counts = (len(some_tensors) if n_tensors % 2 else n_tensors, len(some_keys) if n_keys % 2 else n_keys)
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(some_keys) + b"".join(some_tensors)
    reader("gguf")(head + bytes(-len(head) % 32) + data)


numbers = st.integers(-2, 70) | st.sampled_from([2**31, 2**62, 2**63, 2**64, 1.5, True, None, "1"])
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "I64", "BOOL", "f32", "", None, 7, []]),
        "shape": st.lists(numbers, max_size=9) | numbers,
        "data_offsets": st.lists(numbers, min_size=2, max_size=2) | st.lists(numbers, max_size=3) | numbers,
    },
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), entries | json_values, max_size=4),
    st.integers(-9, 9),
    st.integers(0, 96),
)
@example({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 0, 8)
@BOUNDED
def test_safetensors(header: dict[str, Any], lie: int, size: int) -> None:
    body = json.dumps(header).encode()
    reader("safetensors")(struct.pack("<Q", max(0, len(body) + lie)) + body + bytes(size))


@given(st.integers(0, 3), st.integers(0, 255), st.binary(max_size=24))
@settings(BOUNDED, max_examples=100)
def test_config(kind: int, case: int, changes: bytes) -> None:
    """Each family's config, and its target's, with up to eight fields changed."""
    reader("config")(bytes([kind, case]) + changes)


@given(st.integers(0, 40), st.binary(max_size=60) | json_values.map(lambda v: json.dumps(v).encode()))
@settings(BOUNDED, max_examples=100)
def test_tokenizer(route: int, data: bytes) -> None:
    reader("tokenizer")(bytes([route]) + data)


@given(st.integers(0, 3), st.binary(max_size=120))
@BOUNDED
def test_torchfile(kind: int, data: bytes) -> None:
    reader("torchfile")(bytes([kind]) + data)

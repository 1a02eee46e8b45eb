"""safetensors files, JSON and index files that lie: a named error, at once, in little memory."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, directory, entry, safetensors

from dflash_convert.checkpoint import (
    DTYPE_BYTES,
    MAX_HEADER,
    open_checkpoint,
    read_config,
    read_safetensors,
)
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.jsonfile import MAX_JSON, read_json

EIGHT = bytes(8)
ONE = {"a": entry([2], 0, 8)}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"

# defect -> (file, words of the message that name it)
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", r"not a safetensors file \(0 bytes\)"),
    "seven bytes": (bytes(7), r"not a safetensors file \(7 bytes\)"),
    "a Git LFS pointer": (POINTER, "not a safetensors file"),
    "header length 0": (safetensors(b""), "not valid JSON"),
    "header length 2^63": (safetensors(ONE, EIGHT, 1 << 63), "header length 9223372036854775808 in a file of"),
    "header length 2^64-1": (safetensors(ONE, EIGHT, 2**64 - 1), "header length 18446744073709551615"),
    "header one byte longer than the file": (safetensors(b"{}", b"", 3), "header length 3 in a file of 10 bytes"),
    "header length short by one": (safetensors(ONE, EIGHT, len(json.dumps(ONE)) - 1), "not valid JSON"),
    "header that is a list": (safetensors(b"[]"), "a JSON object was expected, found list"),
    "header that is not UTF-8": (safetensors(b'{"\xff": 1}'), "not UTF-8 text"),
    "header in UTF-16": (safetensors('{"a": 1}'.encode("utf-16")), "not UTF-8 text"),
    "nested 100,000 deep": (safetensors(b'{"a":' * 100_000), "nested too deeply"),
    "lists 100,000 deep": (safetensors(b'{"a":' + b"[" * 100_000), "nested too deeply"),
    "NaN": (safetensors(b'{"a": NaN}'), "NaN is not a number that JSON allows"),
    "Infinity": (safetensors(b'{"a": -Infinity}'), "-Infinity is not a number"),
    "the same name twice": (safetensors(b'{"a": {}, "a": {}}'), "key 'a' occurs twice"),
    "the same tensor twice": (
        safetensors(b'{"a": %b, "a": %b}' % ((json.dumps(ONE["a"]).encode(),) * 2), EIGHT),
        "key 'a' occurs twice",  # the library takes this one
    ),
    "a name that breaks the line": (safetensors({"a\nb\x1b[2J": entry([2], 8, 0)}, EIGHT), r"tensor `a\\nb\\x1b"),
    "a name of 2 MB": (safetensors({"n" * 2_000_000: entry([2], 8, 0)}, EIGHT), "invalid offset for tensor `n+…"),
    "a dtype of the format that is not read": (safetensors({"a": entry([2], 0, 1, "F4")}, b"0"), "unknown dtype 'F4'"),
    "the same field twice": (safetensors(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "key 'dtype' occurs twice"),
    "five million items": (safetensors(b"{" + b'"":[],' * 2_500_000), "more than 4,000,000 items"),
    "a number of 5,000 digits": (safetensors(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "entry that is a list": (safetensors({"a": []}), "tensor 'a' has unknown dtype"),
    "no dtype": (safetensors({"a": {"shape": [2], "data_offsets": [0, 8]}}, EIGHT), "has unknown dtype None"),
    "unknown dtype": (safetensors({"a": entry([2], 0, 8, "F31")}, EIGHT), "has unknown dtype 'F31'"),
    "dtype in small letters": (safetensors({"a": entry([2], 0, 8, "f32")}, EIGHT), "has unknown dtype 'f32'"),
    "dtype that is a list": (safetensors({"a": {**ONE["a"], "dtype": ["F32"]}}, EIGHT), r"unknown dtype \['F32'\]"),
    "no shape": (safetensors({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT), "missing field `shape`"),
    "negative dimension": (safetensors({"a": entry([-2, -1], 0, 8)}, EIGHT), "integer `-2`, expected usize"),
    "fractional dimension": (safetensors({"a": entry([2.0], 0, 8)}, EIGHT), "floating point `2.0`, expected usize"),  # type: ignore[list-item]
    "dimension true": (safetensors({"a": entry([2, True], 0, 8)}, EIGHT), "boolean `true`, expected usize"),
    "dimension 2^62": (safetensors({"a": entry([1 << 62], 0, 8)}, EIGHT), "overflow computing buffer size"),
    "product that wraps": (safetensors({"a": entry([1 << 33, 1 << 31], 0, 0)}), "overflow computing buffer size"),
    "nine dimensions": (safetensors({"a": entry([1] * 8 + [2], 0, 8)}, EIGHT), r"has shape \[1, 1"),
    "shape x dtype too small": (safetensors({"a": entry([1], 0, 8)}, EIGHT), "invalid shape, data type, or offset"),
    "shape x dtype too large": (safetensors({"a": entry([3], 0, 8)}, EIGHT), "invalid shape, data type, or offset"),
    "no offsets": (safetensors({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "missing field `data_offsets`"),
    "empty offsets": (safetensors({"a": {**ONE["a"], "data_offsets": []}}, EIGHT), "expected a tuple of size 2"),
    "three offsets": (
        safetensors({"a": {**ONE["a"], "data_offsets": [0, 8, 8]}}, EIGHT),
        "expected 2 elements in sequence",
    ),
    "negative offset": (safetensors({"a": entry([2], -8, 0)}, EIGHT), "integer `-8`, expected usize"),
    "end before begin": (safetensors({"a": entry([2], 8, 0)}, EIGHT), "invalid offset for tensor `a`"),
    "end past the file": (
        safetensors({"a": entry([2], 0, 8)}, bytes(7)),
        "its 7 bytes of data are not as many",
    ),
    "offset 2^61": (safetensors({"a": entry([2], 1 << 61, (1 << 61) + 8)}, EIGHT), "invalid offset for tensor `a`"),
    "hole at the start": (safetensors({"a": entry([2], 8, 16)}, bytes(16)), "invalid offset for tensor `a`"),
    "hole between": (safetensors({**ONE, "b": entry([2], 12, 20)}, bytes(20)), "invalid offset for tensor `b`"),
    "overlap": (safetensors({**ONE, "b": entry([2], 4, 12)}, bytes(12)), "invalid offset for tensor `b`"),
    "two tensors in one place": (
        safetensors({**ONE, "b": entry([2], 0, 8)}, EIGHT),
        "invalid offset for tensor",
    ),
    "bytes that nobody owns": (safetensors(ONE, bytes(9)), "its 9 bytes of data are not as many"),
    "data without tensors": (safetensors({}, EIGHT), "its 8 bytes of data are not as many"),
    "metadata that is a list": (safetensors({"__metadata__": [], **ONE}, EIGHT), "expected a map"),
    "metadata with a number": (safetensors({"__metadata__": {"a": 1}, **ONE}, EIGHT), "integer `1`, expected a string"),
}


def measured(path: Path, words: str, kind: type[Exception], call: Any) -> Exception:
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=words) as caught:
            call(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert time.process_time() - begin < 1
    assert peak < 50e6
    return caught.value


@pytest.mark.parametrize("defect", MALFORMED)
def test_malformed_safetensors(defect: str, tmp_path: Path) -> None:
    data, words = MALFORMED[defect]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    error = measured(path, words, CheckpointError, read_safetensors)
    assert "bad.safetensors" in str(error)


def test_header_of_100_megabytes(tmp_path: Path) -> None:
    """Refused by its length, before it is read: the file is sparse."""
    path = tmp_path / "bad.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000))
        file.truncate(100_000_008)
    measured(
        path, f"a header of 100000000 bytes, more than {MAX_HEADER // 10**6} MB", CheckpointError, read_safetensors
    )


def test_json_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_JSON + 1)
    measured(path, "config.json: larger than 64 MB", ConfigError, read_json)


@pytest.mark.parametrize("name", ["a Git LFS pointer", "empty file", "end past the file"])
def test_what_a_broken_download_needs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(MALFORMED[name][0])
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    assert caught.value.tip is not None
    assert ("git lfs pull" if "LFS" in name else "finish the download") in caught.value.tip


def test_cut_anywhere(fixtures: Path, tmp_path: Path) -> None:
    whole = (fixtures / "tiny-js" / "drafter" / "model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for cut in [*range(0, 5000, 7), *range(5000, len(whole), len(whole) // 50), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            read_safetensors(path)


def test_every_dtype_and_odd_shape_that_the_format_allows(tmp_path: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for dtype, size in DTYPE_BYTES.items():
        for shape, count in (([], 1), ([0, 5], 0), ([1] * 8, 1), ([3, 2], 6)):
            header[f"{dtype}{shape}"] = entry(shape, at, at + count * size, dtype)
            at += count * size
    path = tmp_path / "odd.safetensors"
    path.write_bytes(safetensors(header, bytes(at)))
    found = read_safetensors(path)
    assert len(found) == 4 * len(DTYPE_BYTES)
    assert found["BF16[3, 2]"].nbytes == 12
    assert found["F32[]"].shape == ()
    assert list(found) == sorted(found)


CONFIGS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "config.json: not valid JSON"),
    "half an object": (b'{"architectures": [', "config.json: not valid JSON"),
    "a list": (b"[1, 2]", "config.json: a JSON object was expected, found list"),
    "a number": (b"7", "config.json: a JSON object was expected, found int"),
    "null": (b"null", "config.json: a JSON object was expected, found NoneType"),
    "two objects": (b"{} {}", "config.json: not valid JSON"),
    "NaN": (b'{"rms_norm_eps": NaN}', "config.json: NaN is not a number"),
    "the same key twice": (b'{"a": 1, "a": 2}', "config.json: key 'a' occurs twice"),
    "the same key twice inside": (b'{"a": {"b": 1, "b": 1}}', "config.json: key 'b' occurs twice"),
    "Latin-1": ('{"a": "é"}'.encode("latin-1"), "config.json: not UTF-8 text"),
    "nested 100,000 deep": (b"[" * 100_000, "config.json: nested too deeply"),
    "a Git LFS pointer": (POINTER, "config.json: not valid JSON"),
    "half a character": (b'{"a": "\\ud83d"}', "config.json: contains an unpaired surrogate"),
    "the other half": (b'{"a": {"\\uDE00 \\ud83d\\ude00": 1}}', "config.json: contains an unpaired surrogate"),
    "a comment": (b'{"a": 1 /* one */}', "config.json: not valid JSON"),
    "gzip": (b"\x1f\x8b\x08\x00" + bytes(20), "config.json: not"),
}


@pytest.mark.parametrize("defect", CONFIGS)
def test_malformed_config(defect: str, tmp_path: Path) -> None:
    data, words = CONFIGS[defect]
    measured(directory(tmp_path / "d", {"config.json": data}), words, ConfigError, read_config)


def test_config_with_a_whole_surrogate_pair_is_read(tmp_path: Path) -> None:
    found = read_config(directory(tmp_path, {"config.json": b'{"a": "\\ud83d\\ude00 \\\\ud83d"}'}))
    assert found == {"a": "\U0001f600 \\ud83d"}


def test_config_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    found = read_config(directory(tmp_path, {"config.json": b"\xef\xbb\xbf" + json.dumps(CONFIG).encode()}))
    assert found == CONFIG


def index(weight_map: Mapping[str, Any]) -> dict[str, Any]:
    return {"metadata": {"total_size": 8}, "weight_map": weight_map}


SHARD = safetensors(ONE, EIGHT)
OUTSIDE = [
    "../x.safetensors",
    "/etc/passwd",
    "sub/x.safetensors",
    "..",
    ".",
    "",
    "..\\x.safetensors",
    "C:x.safetensors",
    "x\0.safetensors",
    "n" * 300,
]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_index_that_points_outside(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(SHARD)
    where = directory(tmp_path / "d", {"model.safetensors.index.json": index({"a": name})})
    with pytest.raises(CheckpointError, match="is not a file name inside the checkpoint's directory"):
        open_checkpoint(where)


INDEXES: dict[str, tuple[Mapping[str, Any], dict[str, bytes], str]] = {
    "no weight_map": ({"metadata": {}}, {}, "weight_map is missing"),
    "weight_map that is a list": ({"weight_map": []}, {}, "weight_map is missing or does not map names to files"),
    "weight_map to a number": (index({"a": 1}), {}, "does not map names to files"),
    "two missing shards": (
        index({"a": "1.safetensors", "b": "2.safetensors"}),
        {},
        "missing: 1.safetensors, 2.safetens",
    ),
    "shard that lacks the tensor": (
        index({"a": "1", "b": "1"}),
        {"1": SHARD},
        "places tensor 'b' in 1, which does not",
    ),
    "tensor in the other shard": (
        index({"a": "2", "b": "1"}),
        {"1": SHARD, "2": safetensors({"b": entry([2], 0, 8)}, EIGHT)},
        "places tensor 'a' in 2, which does not hold it",
    ),
    "tensor in both shards": (index({"a": "1", "b": "2"}), {"1": SHARD, "2": SHARD}, "tensor 'a' is in 1 and in 2"),
    "tensor that the index does not list": (
        index({"a": "1"}),
        {"1": safetensors({**ONE, "b": entry([2], 8, 16)}, bytes(16))},
        "does not list tensor 'b' of 1",
    ),
    "shard that is JSON": (index({"a": "config.json"}), {}, "config.json: header length"),
    "shard that is cut": (index({"a": "1"}), {"1": SHARD[:-1]}, "1: its 7 bytes of data are not as many"),
}


@pytest.mark.parametrize("defect", INDEXES)
def test_index_and_shards_disagree(defect: str, tmp_path: Path) -> None:
    content, shards, words = INDEXES[defect]
    where = directory(tmp_path / "d", {"model.safetensors.index.json": content, **shards})
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(where)


WEIGHTS: dict[str, tuple[dict[str, bytes], str, str]] = {
    "no weights": ({}, "has no weights", "finish the download"),
    "only .bin": ({"pytorch_model.bin": b"\x80\x02"}, "only pytorch_model.bin, which can run code", "safetensors"),
    "only .pt": ({"a.pt": b"", "b.pth": b""}, "only a.pt, b.pth, which can run code", "safetensors"),
    "two weight files": ({"a.safetensors": SHARD, "b.safetensors": SHARD}, "several weight files and no index", "keep"),
    "two index files": (
        {"a.safetensors.index.json": b"{}", "b.safetensors.index.json": b"{}"},
        "several index files",
        "keep one",
    ),
    "two shards with the same tensor": (
        {"model-1.safetensors": SHARD, "model-2.safetensors": SHARD},
        "tensor 'a' is in model-1.safetensors and in model-2.safetensors",
        "",
    ),
}


@pytest.mark.parametrize("defect", WEIGHTS)
def test_weights_that_cannot_be_chosen(defect: str, tmp_path: Path) -> None:
    files, words, cure = WEIGHTS[defect]
    with pytest.raises(CheckpointError, match=words) as caught:
        open_checkpoint(directory(tmp_path / "d", files))
    assert cure in (caught.value.tip or "")


def test_pickle_is_never_loaded(tmp_path: Path) -> None:
    """A directory whose only weights would run code when they are loaded: refused, and the code did not run."""
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, tuple[str, str]]:
            return Path.write_text, (tmp_path / "ran", "x")  # type: ignore[return-value]

    where = directory(tmp_path / "d", {"pytorch_model.bin": pickle.dumps(Bomb())})
    with pytest.raises(CheckpointError, match="can run code"):
        open_checkpoint(where)
    assert not (tmp_path / "ran").exists()


def test_any_single_name_and_any_index_name(tmp_path: Path) -> None:
    for name in ("draft.safetensors", "model.safetensors"):
        found = open_checkpoint(directory(tmp_path / name, {name: SHARD}))
        assert [t.file.name for t in found.tensors.values()] == [name]
    names = {"a": "dflash_draft_model-00001-of-00001.safetensors"}
    files = {"dflash_draft_model.safetensors.index.json": index(names), names["a"]: SHARD}
    assert list(open_checkpoint(directory(tmp_path / "i", files)).tensors) == ["a"]


def test_consolidated_beside_model(tmp_path: Path) -> None:
    """The index or model*.safetensors wins; the second copy under another name is not read."""
    second = {"consolidated.safetensors": safetensors({"other": entry([2], 0, 8)}, EIGHT)}
    found = open_checkpoint(directory(tmp_path / "a", {"model.safetensors": SHARD, **second}))
    assert list(found.tensors) == ["a"]
    found = open_checkpoint(
        directory(tmp_path / "b", {"model.safetensors.index.json": index({"a": "1"}), "1": SHARD, **second})
    )
    assert list(found.tensors) == ["a"]


def test_links_into_a_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b2c").write_bytes(SHARD)
    snapshot = directory(tmp_path / "snapshots" / "main", {})
    (snapshot / "model.safetensors").symlink_to("../../blobs/0a1b2c")
    assert [t.file.name for t in open_checkpoint(snapshot).tensors.values()] == ["model.safetensors"]

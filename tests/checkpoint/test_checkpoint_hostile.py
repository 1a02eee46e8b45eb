"""safetensors files, JSON and index files that lie: a named error, at once, in little memory."""

from __future__ import annotations

import json
import re
import struct
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import CONFIG, directory, entry, safetensors
from malformed_safetensors import EIGHT, MALFORMED, ONE, POINTER

from dflash_convert.checkpoint import (
    DTYPE_BYTES,
    MAX_HEADER,
    open_checkpoint,
    read_config,
    read_safetensors,
)
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.jsonfile import MAX_JSON, read_json
from dflash_convert.text import size as shown


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
    words = f"a header of {shown(100_000_000)}, more than {shown(MAX_HEADER)}"
    measured(path, re.escape(words), CheckpointError, read_safetensors)


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
    "tensor in both shards": (
        index({"a": "1", "b": "2"}),
        {"1": SHARD, "2": SHARD},
        "tensor 'a' is in .*/1 and in .*/2",
    ),
    "tensor that the index does not list": (
        index({"a": "1"}),
        {"1": safetensors({**ONE, "b": entry([2], 8, 16)}, bytes(16))},
        "does not list tensor 'b' of 1",
    ),
    "shard that is JSON": (index({"a": "config.json"}), {}, "config.json: header length"),
    "shard that is cut": (index({"a": "1"}), {"1": SHARD[:-1]}, "1: its data is 7 bytes long"),
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
        "tensor 'a' is in .*/d/model-1.safetensors and in .*/d/model-2.safetensors",
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

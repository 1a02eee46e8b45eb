"""Malformed GGUF files, one for each rule of the format: a named error, at once, in little memory."""

from __future__ import annotations

import os
import time
import tracemalloc
from pathlib import Path

import gguf_builder as gb
import pytest
from malformed_gguf import MALFORMED

from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import ContainerError


@pytest.mark.parametrize("defect", MALFORMED)
def test_malformed_file_is_named(defect: str, tmp_path: Path) -> None:
    data, words = MALFORMED[defect]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    begin = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(ContainerError, match=words) as caught:
            open_gguf(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bad.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3
    assert time.process_time() - begin < 1
    assert peak < 50e6


def test_at_least_forty_defects() -> None:
    assert len(MALFORMED) >= 40
    assert len({words for _, words in MALFORMED.values()}) >= 40


def test_lfs_pointer_has_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(MALFORMED["a Git LFS pointer"][0])
    with pytest.raises(ContainerError) as caught:
        open_gguf(path)
    assert caught.value.tip is not None
    assert "git lfs pull" in caught.value.tip


@pytest.mark.parametrize("make", ["missing", "directory", "pipe", "nul"])
def test_what_is_not_a_file(make: str, tmp_path: Path) -> None:
    """A pipe must not block the open, a NUL in the name is no ValueError."""
    path = tmp_path / "x.gguf"
    if make == "directory":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "nul":
        path = tmp_path / "x\0.gguf"
    words = {
        "missing": "no such file",
        "directory": "a directory, not a GGUF",
        "pipe": "a pipe, not a GGUF",
        "nul": "null (byte|character)",
    }
    with pytest.raises(ContainerError, match=words[make]):
        open_gguf(path)


def test_truncation_at_every_byte(fixtures: Path, tmp_path: Path) -> None:
    """A real file cut anywhere in its first 4 KiB, or in its last, is never accepted."""
    whole = (fixtures / "tiny-js" / "target-bf16.gguf").read_bytes()
    tail = len(whole) - open_gguf(fixtures / "tiny-js" / "target-bf16.gguf").alignment
    path = tmp_path / "cut.gguf"
    cuts = [*range(4097), *range(tail - 4096, tail, 97)]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(ContainerError):
            open_gguf(path)
    assert len(cuts) > 4096


def test_one_flipped_bit_never_crashes(fixtures: Path, tmp_path: Path) -> None:
    """Each bit of a real header's first 2 KiB: either a ContainerError or a file that reads to its end."""
    whole = bytearray((fixtures / "tiny-js" / "target-bf16.gguf").read_bytes())
    path = tmp_path / "flip.gguf"
    path.write_bytes(whole)
    refused = 0
    with path.open("r+b", buffering=0) as file:
        for at in range(2048):
            file.seek(at)
            file.write(bytes([whole[at] ^ (1 << at % 8)]))
            try:
                for kv in open_gguf(path).keys.values():
                    if kv.item is not None:
                        list(kv.value)
            except ContainerError:
                refused += 1
            file.seek(at)
            file.write(whole[at : at + 1])
    assert refused > 100  # counts, lengths and types; a flipped character in a text is not noticed


def test_a_length_that_leads_out_of_the_file_is_no_negative_number(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(gb.gguf([gb.array("a", 8, 2, gb.text("x", 1 << 48) + gb.text("y"))], []))
    with pytest.raises(ContainerError, match="string 1 of array 'a' begins past the end of the file") as caught:
        open_gguf(path)
    assert "damaged" in str(caught.value.tip)

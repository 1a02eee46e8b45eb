"""Malformed GGUF files, one for each rule of the format: a named error, at once, in little memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_builder import ARCH, ARRAY, BOOL, ONE, STRING, U32, array, gguf, key, scalar, string, tensor, text

from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import ContainerError

BIG = (1 << 64) - 1
PAD = bytes(64)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


# defect -> (file, words of the message that name it)
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes are too few"),
    "shorter than a header": (b"GGUF" + bytes(19), "23 bytes are too few"),
    "wrong magic": (gguf(magic=b"GGML"), "not a GGUF file: it begins with b'GGML'"),
    "zeroed magic": (gguf(magic=bytes(4)), r"begins with b'\\x00\\x00\\x00\\x00'"),
    "a safetensors file": (u64(20) + b'{"a":{}}' + bytes(20), "not a GGUF file"),
    "a zip archive": (b"PK\3\4" + bytes(40), r"begins with b'PK\\x03\\x04'"),
    "version 0": (gguf(version=0), "GGUF version 0 is not supported"),
    "version 1": (gguf(version=1), "GGUF version 1 is not supported"),
    "version 2": (gguf(version=2), "GGUF version 2 is not supported"),
    "version 4": (gguf(version=4), "GGUF version 4 is not supported"),
    "big-endian": (gguf(version=3 << 24), "big-endian GGUF is not supported"),
    "2^64-1 tensors": (gguf(n_tensors=BIG), f"{BIG} tensors cannot fit"),
    "2^64-1 keys": (gguf(n_keys=BIG), f"{BIG} keys cannot fit"),
    "2^63 keys": (gguf(n_keys=1 << 63), "keys cannot fit"),
    "one key more than there are": (gguf([ARCH], n_keys=2), "key 1"),
    "one key fewer than there are": (
        gguf([ARCH, ARCH], n_keys=1, n_tensors=1),
        "tensor 'general.architecture' has 8 dimensions",
    ),
    "one tensor more than there are": (gguf([ARCH], [ONE], bytes(32), n_tensors=2), "tensor 1"),
    "key name of 2^63 bytes": (gguf([u64(1 << 63) + bytes(20)]), "name of key 0 is 9223372036854775808 bytes long"),
    "key name past the end": (gguf([text("ab", 60000) + bytes(20)]), "name of key 0 needs 60000 bytes at offset 32"),
    "key name of 65,536 bytes": (gguf([string("k" * 65536, "v")]), "the format allows 65535"),
    "empty key name": (gguf([string("", "v")]), "key 0 has an empty name"),
    "key name that is not UTF-8": (gguf([string(b"\xff\xfe", "v")]), "name of key 0 is not valid UTF-8"),
    "the same key twice": (gguf([ARCH, ARCH]), "key 'general.architecture' occurs twice"),
    "unknown value type": (gguf([key("a", 13, bytes(8))]), "key 'a' has unknown value type 13"),
    "value type 2^32-1": (gguf([key("a", 2**32 - 1, bytes(8))]), "unknown value type 4294967295"),
    "bool of 2": (gguf([scalar("a", BOOL, 2)]), "value of 'a' is a bool with byte 2"),
    "string value past the end": (gguf([key("a", STRING, text("x", 1 << 40))]), "value of 'a' is 1099511627776 bytes"),
    "string value of 2^64-1 bytes": (gguf([key("a", STRING, text("x", BIG))]), f"is {BIG} bytes long"),
    "scalar cut off": (
        gguf(n_keys=1)[:24] + text("a") + b"\4\0\0\0\1",
        "value of 'a' needs 4 bytes at offset 37, 1 remain",
    ),
    "array of arrays": (gguf([array("a", ARRAY, 1, bytes(12))]), "'a' is an array of arrays"),
    "array of an unknown type": (gguf([array("a", 77, 1, bytes(8))]), "array 'a' has unknown value type 77"),
    "array of 2^63 numbers": (
        gguf([array("a", U32, 1 << 63, bytes(8))]),
        "array 'a' of 9223372036854775808 items needs",
    ),
    "array whose byte size wraps to 0": (gguf([array("a", 10, 1 << 61, bytes(8))]), f"needs {1 << 64} bytes"),
    "array of 2^64-1 bytes": (gguf([array("a", 0, BIG, bytes(8))]), "array 'a' of"),
    "array of 2^63 strings": (
        gguf([array("a", STRING, 1 << 63, bytes(8))]),
        "array 'a' of 9223372036854775808 strings",
    ),
    "string in an array past the end": (
        gguf([array("a", STRING, 1, text("x", 1 << 50))]),
        "string of array 'a' reaches past",
    ),
    "second string past the end": (
        gguf([array("a", STRING, 2, text("x", 1 << 50) + text(""))]),
        "string 1 of array 'a'",
    ),
    "bool array with a 3": (gguf([array("a", BOOL, 3, b"\0\1\3")]), "array 'a' holds a bool with byte 3"),
    "alignment 0": (gguf([scalar("general.alignment", U32, 0)]), "general.alignment is 0, not a power of two"),
    "alignment 24": (gguf([scalar("general.alignment", U32, 24)]), "general.alignment is 24"),
    "alignment 4": (gguf([scalar("general.alignment", U32, 4)]), "general.alignment is 4"),
    "alignment 2^30": (gguf([scalar("general.alignment", U32, 1 << 30)]), "general.alignment is 1073741824"),
    "alignment as a 64-bit number": (gguf([scalar("general.alignment", 10, 32)]), "has type UINT64, not UINT32"),
    "alignment as a string": (gguf([string("general.alignment", "32")]), "has type STRING, not UINT32"),
    "alignment as an array": (gguf([array("general.alignment", U32, 1, bytes(4))]), "has type ARRAY, not UINT32"),
    "tensor name of 64 bytes": (
        gguf([ARCH], [tensor("n" * 64, [8])], bytes(32)),
        "name of tensor 0 is 64 bytes long, the format allows 63",
    ),
    "tensor name of 2^64-1 bytes": (gguf([ARCH], [text("a", BIG) + PAD]), "name of tensor 0 is"),
    "empty tensor name": (gguf([ARCH], [tensor("", [8])], bytes(32)), "tensor 0 has an empty name"),
    "tensor name that is not UTF-8": (
        gguf([ARCH], [tensor(b"\x80", [8])], bytes(32)),
        "name of tensor 0 is not valid UTF-8",
    ),
    "the same tensor twice": (gguf([ARCH], [ONE, tensor("a", [8], 0, 32)], bytes(64)), "tensor 'a' occurs twice"),
    "no dimensions": (gguf([ARCH], [tensor("a", [])], bytes(32)), "tensor 'a' has 0 dimensions"),
    "five dimensions": (gguf([ARCH], [tensor("a", [1, 1, 1, 1, 8])], bytes(32)), "tensor 'a' has 5 dimensions, 1 to 4"),
    "2^32-1 dimensions": (gguf([ARCH], [tensor("a", [8], n_dims=2**32 - 1)], bytes(32)), "has 4294967295 dimensions"),
    "a dimension of zero": (gguf([ARCH], [tensor("a", [8, 0])], bytes(32)), r"dimension of zero: \[8, 0\]"),
    "elements overflow 64 bits": (gguf([ARCH], [tensor("a", [1 << 32, 1 << 32])], bytes(32)), "the product overflows"),
    "elements wrap to 1": (gguf([ARCH], [tensor("a", [BIG, BIG])], bytes(32)), "the product overflows"),
    "bytes overflow 64 bits": (gguf([ARCH], [tensor("a", [1 << 62])], bytes(32)), f"ends at byte {(1 << 64) + 128}"),
    "one negative dimension": (gguf([ARCH], [tensor("a", [1 << 63])], bytes(32)), "the product overflows"),
    "retired type 4": (gguf([ARCH], [tensor("a", [32], 4)], bytes(64)), "unknown or retired type 4"),
    "unknown type 2^32-1": (
        gguf([ARCH], [tensor("a", [32], 2**32 - 1)], bytes(64)),
        "unknown or retired type 4294967295",
    ),
    "row that no Q8_0 block fills": (
        gguf([ARCH], [tensor("a", [40, 2], 8)], bytes(96)),
        "rows of tensor 'a' have 40 elements, Q8_0 needs a multiple of 32",
    ),
    "row that no Q4_K block fills": (
        gguf([ARCH], [tensor("a", [96, 8], 12)], bytes(960)),
        "Q4_K needs a multiple of 256",
    ),
    "first tensor not at 0": (
        gguf([ARCH], [tensor("a", [8], 0, 32)], bytes(64)),
        "offset 32, expected 0: it leaves a hole",
    ),
    "tensors overlap": (
        gguf([ARCH], [ONE, tensor("b", [8], 0, 0)], bytes(64)),
        "tensor 'b' lies at data offset 0, expected 32: it overlaps",
    ),
    "unaligned offset": (gguf([ARCH], [ONE, tensor("b", [8], 0, 33)], bytes(99)), "expected 32: it leaves a hole"),
    "hole between tensors": (
        gguf([ARCH], [ONE, tensor("b", [8], 0, 64)], bytes(96)),
        "tensor 'b' lies at data offset 64, expected 32",
    ),
    "offset of 2^64-32": (gguf([ARCH], [tensor("a", [8], 0, BIG - 31)], bytes(32)), "leaves a hole"),
    "data one byte short": (gguf([ARCH], [ONE], bytes(31)), "tensor 'a' ends at byte"),
    "no data at all": (gguf([ARCH], [ONE]), "tensor 'a' ends at byte 160, the file has 128"),
    "a second file appended": (gguf([ARCH], [ONE], bytes(32) + gguf([ARCH])), "bytes follow the last tensor"),
    "bytes after a file without tensors": (gguf([ARCH]) + bytes(100), "bytes follow the last tensor"),
    "a Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n",
        "not a GGUF file",
    ),
}


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
        "directory": "not a regular file",
        "pipe": "not a regular file",
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

"""mask_embedding.pt is read without unpickling; everything but its one form is refused."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch_archive import STOP, mask_program, name, number, tensor, text, write_archive

from dflash_convert.errors import CheckpointError
from dflash_convert.torchfile import read_mask_embedding

COUNT = 8
VECTOR = np.linspace(-1, 1, COUNT, dtype=np.float32)


def test_reads_the_dict(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "m.pt", mask_program(77, COUNT), VECTOR)
    token, vector = read_mask_embedding(path)
    assert token == 77
    assert np.array_equal(vector, VECTOR)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("BFloat16Storage", (VECTOR.view(np.uint32) >> 16).astype(np.uint16)),
        ("HalfStorage", VECTOR.astype(np.float16)),
        ("DoubleStorage", VECTOR.astype(np.float64)),
    ],
)
def test_reads_every_float_type(tmp_path: Path, kind: str, stored: NDArray[Any]) -> None:
    path = write_archive(tmp_path / "m.pt", mask_program(77, COUNT, kind=kind), stored)
    assert np.allclose(read_mask_embedding(path)[1], VECTOR, atol=0.01)


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('executed')",)


def call(module: str, attribute: str) -> bytes:
    return name(module, attribute) + b"(" + text("true") + b"tR"


REFUSED = {
    "executes": (pickle.dumps(Payload(), protocol=2), "not allowed"),
    "protocol 4": (pickle.dumps({"mask_token_id": 1, "embedding": Payload()}, protocol=4), "not allowed"),
    "os.system": (call("os", "system") + STOP, "calls os.system"),
    "bare tensor": (tensor(COUNT) + STOP, "bare tensor"),
    "list": (b"]" + STOP, "instruction EMPTY_LIST"),
    "number": (number(3) + STOP, "not a dict"),
    "other keys": (b"}(" + text("embedding") + tensor(COUNT) + b"u" + STOP, "not a dict of mask_token_id"),
    "text as token": (
        b"}(" + text("mask_token_id") + text("7") + text("embedding") + tensor(COUNT) + b"u" + STOP,
        "not a token id",
    ),
    "matrix": (mask_program(1, COUNT, shape=(2, 4)), "not one contiguous vector"),
    "integers": (mask_program(1, COUNT, kind="LongStorage"), "other than float32"),
    "beyond": (mask_program(1, COUNT, shape=(COUNT + 1,)), "beyond its storage"),
    "offset": (mask_program(1, COUNT, offset=1), "beyond its storage"),
    "storage too small": (mask_program(1, COUNT + 1), "beyond its storage"),
    "storage huge": (mask_program(1, 1 << 30), "damaged tensor storage"),
    "no stop": (b"}", "damaged pickle"),
    "empty": (b"", "damaged pickle"),
    "two values": (number(1) + number(2) + STOP, "does not end in one value"),
    "stray get": (b"h\x05" + STOP, "damaged pickle"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, tmp_path: Path) -> None:
    program, reason = REFUSED[case]
    path = write_archive(tmp_path / "mask_embedding.pt", program, VECTOR)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_mask_embedding(path)
    assert "/mask_embedding.pt: " in str(caught.value)
    assert caught.value.tip is not None


def test_refuses_what_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"not a zip", pickle.dumps({"mask_token_id": 1})):
        (tmp_path / "m.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="not a torch"):
            read_mask_embedding(tmp_path / "m.pt")


def test_refuses_compressed_and_repeated_entries(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", mask_program(1, COUNT))
        archive.writestr("a/data/0", VECTOR.tobytes())
    with pytest.raises(CheckpointError, match="compressed"):
        read_mask_embedding(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", mask_program(1, COUNT))
        archive.writestr("b/data.pkl", mask_program(1, COUNT))
    with pytest.raises(CheckpointError, match=r"2 data\.pkl entries"):
        read_mask_embedding(path)


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_random_programs_end_in_one_error(tmp_path_factory: pytest.TempPathFactory, program: bytes) -> None:
    path = write_archive(tmp_path_factory.mktemp("fuzz") / "m.pt", program, VECTOR)
    with pytest.raises(CheckpointError):
        read_mask_embedding(path)


@settings(max_examples=300)
@given(st.integers(0, len(mask_program(77, COUNT)) - 1), st.integers(0, 255))
def test_one_changed_byte_never_escapes(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    program = bytearray(mask_program(77, COUNT))
    program[at] = value
    path = write_archive(tmp_path_factory.mktemp("fuzz") / "m.pt", bytes(program), VECTOR)
    try:
        token, vector = read_mask_embedding(path)
    except CheckpointError:
        return
    assert token >= 0
    assert vector.dtype == np.float32

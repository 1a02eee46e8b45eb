"""torch.save archives written by hand, instruction by instruction; no torch needed."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STOP = b"."


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def tensor(count: int, shape: tuple[int, ...] | None = None, kind: str = "FloatStorage", offset: int = 0) -> bytes:
    """What torch writes for a contiguous tensor over storage 0."""
    shape = (count,) if shape is None else shape
    stride = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    storage = b"(" + text("storage") + name("torch", kind) + text("0") + text("cpu") + number(count) + b"tQ"
    sizes = b"(" + b"".join(map(number, shape)) + b"t" + b"(" + b"".join(map(number, stride)) + b"t"
    hooks = b"\x89" + name("collections", "OrderedDict") + b")R"
    return name("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + number(offset) + sizes + hooks + b"tR"


def mask_program(token: int, count: int, **over: Any) -> bytes:
    """{'mask_token_id': token, 'embedding': tensor}"""
    items = text("mask_token_id") + number(token) + text("embedding") + tensor(count, **over)
    return b"\x80\x02}q\x00(" + items + b"u" + STOP


def write_archive(path: Path, program: bytes, values: NDArray[Any], stem: str = "mask_embedding") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{stem}/data.pkl", program)
        archive.writestr(f"{stem}/byteorder", "little")
        archive.writestr(f"{stem}/data/0", values.tobytes())
        archive.writestr(f"{stem}/version", "3\n")
    return path

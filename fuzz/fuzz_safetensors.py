"""safetensors: header length, JSON header, the cover of the data."""

from __future__ import annotations

import math
from collections.abc import Callable

from harness import scratch


def reader() -> Callable[[bytes], object]:
    from dflash_convert.checkpoint import DTYPE_BYTES, read_safetensors

    path = scratch() / "x.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = read_safetensors(path)
        covered = sum(tensor.nbytes for tensor in found.values())
        if covered + 8 + int.from_bytes(data[:8], "little") != len(data):
            raise ValueError("an accepted file with bytes that no tensor owns")
        for tensor in found.values():
            if math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype] != tensor.nbytes:
                raise ValueError("a tensor whose bytes are not its shape's")

    return read

"""Streaming decoder: blocks in, float32 rows out, in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .decode import Kernel
from .errors import ShapeError
from .half import F32
from .load import Loader
from .types import quant_type

CHUNK = 1 << 18  # elements a kernel call


class Decoder:
    """Decodes rows of ``row_length`` elements of ``type_name``; one per thread or process."""

    def __init__(self, type_name: str, row_length: int, *, chunk: int | None = None) -> None:
        self.type = quant_type(type_name)
        self.row_length = row_length
        self.row_nbytes = self.type.row_nbytes(row_length)
        self._blocks = max(1, (chunk or CHUNK) // self.type.block)
        self._kernel = Kernel(type_name, self._blocks * self.type.block) if self.type.block > 1 else None
        self._loader = Loader(self._blocks)

    def decode(self, data: NDArray[np.uint8], out: F32) -> None:
        """Decode ``data`` uint8 [n, row_nbytes] into ``out`` float32 [n, row_length]; both C-contiguous."""
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != self.row_nbytes:
            raise ShapeError(f"data is {data.dtype} {data.shape}, not uint8 [n, {self.row_nbytes}]")
        if out.dtype != np.float32 or out.shape != (data.shape[0], self.row_length):
            raise ShapeError(f"the output is {out.dtype} {out.shape}, not float32 [n, {self.row_length}]")
        if not (data.flags.c_contiguous and out.flags.c_contiguous):
            raise ShapeError("data and output must be C-contiguous")
        records = data.reshape(-1, self.type.nbytes)
        values = out.reshape(-1, self.type.block)
        with np.errstate(all="ignore"):
            for start in range(0, len(records), self._blocks):
                part = slice(start, min(start + self._blocks, len(records)))
                self._decode(records[part], values[part])

    def _decode(self, records: NDArray[np.uint8], values: F32) -> None:
        if self._kernel is not None:
            self._kernel.decode(records, values.reshape(-1))
        elif self.type.name == "F32":
            np.copyto(values, records.view(np.float32))
        else:
            halves = records.view(np.float16 if self.type.name == "F16" else np.uint16)
            self._loader.flat(halves.reshape(-1), values.reshape(-1))

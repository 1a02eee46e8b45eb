"""How source bytes become the rows of a GGUF tensor: a few named, pure transforms.

Rows come out in the source's own number format (bf16 as uint16 bit patterns), so that encoding to the same
format is a copy and nothing is rounded twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_convert.checkpoint import Reader, SourceTensor
from dflash_convert.container.types import BLOCK
from dflash_convert.errors import CheckpointError
from dflash_convert.families.common import TensorPlan

Array = npt.NDArray[Any]

NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("u1"),
}

# quantized types of GGUF sources: their rows are read as bytes
BLOCK_TYPES = frozenset(kind.name for kind, (block, _) in BLOCK.items() if block > 1)


def row_length(shape: tuple[int, ...]) -> int:
    return shape[-1]


def row_count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape[:-1]:
        count *= n
    return count


def granularity(plan: TensorPlan) -> int:
    """Rows that must be read together: a head for ``rope_rows``, one otherwise."""
    if plan.transform == "rope_rows" and len(plan.shape) > 1:
        return plan.argument
    return 1


class RowSource:
    """Reads rows ``start`` to ``stop`` of planned tensors through one buffer that is allocated once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._buffer = np.empty(0, dtype=np.uint8)

    def rows(self, plan: TensorPlan, start: int, stop: int) -> Array:
        """[stop - start, row length]; the array is valid until the next call."""
        if plan.constant is not None:
            return plan.constant.reshape(row_count(plan.shape), -1)[start:stop]
        rows = self._read(plan, start, stop)
        if plan.transform == "rope_rows":
            return rope_rows(rows, plan.argument)
        if plan.transform == "add_index":
            return rows + np.arange(rows.size, dtype=np.int64).reshape(rows.shape)
        if rows.dtype == np.float64:
            return rows.astype(np.float32)
        return rows

    def _read(self, plan: TensorPlan, start: int, stop: int) -> Array:
        source = plan.sources[0]
        dtype = NUMPY_DTYPE.get(source.dtype)
        if dtype is None and source.dtype in BLOCK_TYPES:
            return self._blocks(source, plan, start, stop)
        if dtype is None:
            raise CheckpointError(f"{source.file.name}: tensor {source.name!r} is {source.dtype}, not a float format")
        k = row_length(plan.shape)
        nbytes = (stop - start) * k * dtype.itemsize
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, dtype=np.uint8)
        view = self._buffer[:nbytes]
        self._reader.into(source, start * k * dtype.itemsize, view.data)
        result: Array = view.view(dtype).reshape(stop - start, k)
        return result

    def _blocks(self, source: SourceTensor, plan: TensorPlan, start: int, stop: int) -> Array:
        """Rows of a quantized GGUF tensor as they stand, uint8 [rows, bytes per row]."""
        nbytes = source.nbytes // row_count(plan.shape)
        if self._buffer.size < (stop - start) * nbytes:
            self._buffer = np.empty((stop - start) * nbytes, dtype=np.uint8)
        view = self._buffer[: (stop - start) * nbytes]
        self._reader.into(source, start * nbytes, view.data)
        return view.reshape(stop - start, nbytes)


def rope_rows(rows: Array, head_dim: int) -> Array:
    """Interleaved rope layout to NeoX: within each head the even rows first, then the odd ones."""
    if rows.shape[0] == 1:  # a norm over one head: its elements take the place of rows
        return np.ascontiguousarray(rows.reshape(-1, head_dim // 2, 2).swapaxes(1, 2)).reshape(rows.shape)
    k = rows.shape[1]
    return np.ascontiguousarray(rows.reshape(-1, head_dim // 2, 2, k).swapaxes(1, 2)).reshape(rows.shape)

"""How source bytes become the rows of a GGUF tensor: a few named, pure transforms.

Rows come out in the source's own number format (bf16 as uint16 bit patterns), so that encoding to the same
format is a copy and nothing is rounded twice.  Quantized sources come out as float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_convert.checkpoint import Reader
from dflash_convert.container.types import BLOCK
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.unpack import decode_rows, stacked_blocks
from dflash_convert.errors import CheckpointError
from quant import from_bf16

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
    return math.prod(shape[:-1])


def granularity(plan: TensorPlan) -> int:
    """Rows that must be read together: a head for the rope permutations, one otherwise."""
    if plan.transform.startswith("rope_") and len(plan.shape) > 1:
        return plan.argument
    return 1


class RowSource:
    """Reads rows ``start`` to ``stop`` of planned tensors through one buffer that is allocated once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._buffer = np.empty(0, dtype=np.uint8)

    def rows(self, plan: TensorPlan, start: int, stop: int) -> Array:
        """[stop - start, row length]; the array is valid until the next call."""
        if not plan.sources:
            if plan.constant is not None:
                return plan.constant.reshape(row_count(plan.shape), -1)[start:stop]
            return np.zeros((stop - start, row_length(plan.shape)), dtype=np.float32)
        if plan.transform == "stack":
            return stacked_blocks(self._reader, plan, start, stop)
        if plan.transform == "select":
            return self._select(plan, start, stop)
        rows = decode_rows(self._reader, plan, start, stop) if plan.scheme else self._read(plan, start, stop)
        for step in plan.transform.split("+"):
            rows = apply(step, rows, plan, start)
        return rows.astype(np.float32) if rows.dtype == np.float64 else rows

    def _read(self, plan: TensorPlan, start: int, stop: int) -> Array:
        source = plan.sources[0]
        dtype = NUMPY_DTYPE.get(source.dtype)
        if dtype is None and source.dtype in BLOCK_TYPES:
            return self._blocks(plan, start, stop)
        if dtype is None:
            raise CheckpointError(f"{source.file}: tensor {source.name!r} is {source.dtype}, not a float format")
        k = row_length(plan.shape) - (plan.argument if plan.transform == "pad_columns" else 0)
        nbytes = (stop - start) * k * dtype.itemsize
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, dtype=np.uint8)
        view = self._buffer[:nbytes]
        self._reader.into(source, start * k * dtype.itemsize, view.data)
        result: Array = view.view(dtype).reshape(stop - start, k)
        return result

    def _select(self, plan: TensorPlan, start: int, stop: int) -> Array:
        """Rows ``constant`` of the source, neighbours in one read: its own floats, or uint8 of a quantized type."""
        if plan.constant is None:
            raise ValueError("select needs the rows' numbers")
        source, wanted = plan.sources[0], plan.constant[start:stop]
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        runs = list(zip([0, *breaks], [*breaks, wanted.size], strict=True))
        if plan.scheme:
            spans = [(int(wanted[first]), int(wanted[last - 1]) + 1) for first, last in runs]
            return np.concatenate([decode_rows(self._reader, plan, *span) for span in spans])
        nbytes = source.nbytes // row_count(source.shape)
        rows = np.empty((wanted.size, nbytes), dtype=np.uint8)
        for first, last in runs:
            self._reader.into(source, int(wanted[first]) * nbytes, rows[first:last].reshape(-1).data)
        return rows if source.dtype in BLOCK_TYPES else rows.view(NUMPY_DTYPE[source.dtype])

    def _blocks(self, plan: TensorPlan, start: int, stop: int) -> Array:
        """Rows of a quantized GGUF tensor as they stand, uint8 [rows, bytes per row]."""
        nbytes = plan.sources[0].nbytes // row_count(plan.shape)
        rows = np.empty((stop - start, nbytes), dtype=np.uint8)
        self._reader.into(plan.sources[0], start * nbytes, rows.reshape(-1).data)
        return rows


def apply(step: str, rows: Array, plan: TensorPlan, start: int) -> Array:
    """One step of a plan's ``transform`` on the rows from ``start`` on."""
    if step == "rope_rows":
        return rope_rows(rows, plan.argument)
    if step == "rope_interleave":
        return rope_interleave(rows, plan.argument)
    if step == "add_index":
        return rows.astype(np.int64) + np.arange(rows.size, dtype=np.int64).reshape(rows.shape)
    if step == "add_one":
        return float32(rows) + np.float32(1)
    if step == "pad_columns":
        return np.pad(rows, ((0, 0), (0, plan.argument)))
    if step == "patch_row":
        return _patch_row(rows, plan, start)
    return rows


def _patch_row(rows: Array, plan: TensorPlan, start: int) -> Array:
    """Replace row ``argument`` by ``constant``, rounded to the rows' own format."""
    at = plan.argument - start
    if plan.constant is not None and 0 <= at < rows.shape[0]:
        rows[at] = bfloat16(plan.constant) if rows.dtype == np.uint16 else plan.constant
    return rows


def float32(rows: Array) -> Array:
    """float32 values of source rows; bf16 comes as uint16 patterns."""
    if rows.dtype == np.uint16:
        return from_bf16(rows)
    return rows.astype(np.float32)


def bfloat16(values: Array) -> Array:
    """bf16 bit patterns (uint16) of finite float32 values, rounded half to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


def rope_rows(rows: Array, head_dim: int) -> Array:
    """Interleaved rope layout to NeoX: within each head the even rows first, then the odd ones."""
    return _swap(rows, head_dim, (-1, head_dim // 2, 2))


def rope_interleave(rows: Array, head_dim: int) -> Array:
    """NeoX rope layout to interleaved, as llama.cpp's Llama-type graphs expect it."""
    return _swap(rows, head_dim, (-1, 2, head_dim // 2))


def _swap(rows: Array, head_dim: int, split: tuple[int, int, int]) -> Array:
    if rows.shape[0] == 1:  # a norm over one head: its elements take the place of rows
        return np.ascontiguousarray(rows.reshape(split).swapaxes(1, 2)).reshape(rows.shape)
    return np.ascontiguousarray(rows.reshape(*split, rows.shape[1]).swapaxes(1, 2)).reshape(rows.shape)

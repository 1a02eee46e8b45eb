"""Whole matrices in one call, over threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoder import Decoder
from .encoder import Encoder
from .errors import QuantError, ShapeError
from .half import F32
from .kernel import Array
from .types import quant_type

_SMALL = 1 << 20  # elements below which one thread is faster than starting two


def quantize(
    rows: Array, type_name: str, *, imatrix: F32 | None = None, threads: int | None = None
) -> NDArray[np.uint8]:
    """``rows`` [n, k] as blocks, uint8 [n, row bytes].

    ``rows`` is float32, float16, or bf16 bit patterns as uint16. ``imatrix`` float32 [k] weighs the columns
    (types with TYPES[name].imatrix; the others take no notice, as in ggml). ``threads`` defaults to all cores.
    Errors: UnknownTypeError, ShapeError, NonFiniteError and ScaleOverflowError (with ``row``).
    """
    if rows.ndim != 2:
        raise ShapeError(f"rows have shape {rows.shape}, not [n, k]")
    rows = np.ascontiguousarray(rows)
    n, k = rows.shape
    out = np.empty((n, quant_type(type_name).row_nbytes(k)), np.uint8)

    def part(start: int, stop: int) -> None:
        Encoder(type_name, k, imatrix=imatrix).encode(rows[start:stop], out[start:stop])

    _split(n, k, threads, part)
    return out


def dequantize(data: NDArray[np.uint8], type_name: str, *, threads: int | None = None) -> F32:
    """Blocks ``data`` uint8 [n, row bytes] as float32 [n, k], bit for bit as ggml's ``to_float``."""
    kind = quant_type(type_name)
    if data.ndim != 2 or data.shape[1] == 0 or data.shape[1] % kind.nbytes:
        raise ShapeError(f"data of shape {data.shape} is not [n, blocks × {kind.nbytes}] ({type_name})")
    data = np.ascontiguousarray(data)
    n, k = data.shape[0], data.shape[1] // kind.nbytes * kind.block
    out = np.empty((n, k), np.float32)

    def part(start: int, stop: int) -> None:
        Decoder(type_name, k).decode(data[start:stop], out[start:stop])

    _split(n, k, threads, part)
    return out


def _split(n: int, k: int, threads: int | None, part: Callable[[int, int], Any]) -> None:
    """Run ``part(start, stop)`` over row ranges; the error of the lowest row wins."""
    count = min(n, threads or os.cpu_count() or 1)
    if count <= 1 or (threads is None and n * k < _SMALL):
        part(0, n)
        return
    bounds = [n * i // count for i in range(count + 1)]

    def run(i: int) -> QuantError | None:
        try:
            part(bounds[i], bounds[i + 1])
        except QuantError as error:
            return _shifted(error, bounds[i])
        return None

    with ThreadPoolExecutor(count) as pool:
        for error in pool.map(run, range(count)):
            if error is not None:
                raise error


def _shifted(error: QuantError, start: int) -> QuantError:
    """The same error with its row counted from the whole matrix."""
    if error.row is None:
        return error
    row = error.row + start
    return type(error)(str(error).replace(f"row {error.row} ", f"row {row} ", 1), row=row)

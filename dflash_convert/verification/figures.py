"""How far encoded values are from their source: error figures, block by block, with a second dequantizer.

The decoders here are not those that the conversion was tested with: the gguf library's where it knows the
type, ours otherwise, and the result says which.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import quant
from dflash_convert.container.reader import TensorInfo
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.errors import ContainerError
from dflash_convert.gguf_library import gguf_library
from dflash_convert.system import open_read, read_all

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

CHUNK = 1 << 18  # elements compared at a time: memory stays flat however large the tensor

# Largest error in a block over the largest source value in it: measured with ggml's encoders on Gaussian, uniform,
# one-sided, sparse and heavy-tailed rows, with half as much again (twice for the K-types, whose search is free to
# weigh a block's values).  A block of another tensor, row or layer has a ratio of about 1 and more.
BLOCK_BOUND = {
    **{"F16": 0.001, "BF16": 0.004, "Q8_0": 0.012, "Q4_0": 0.19, "Q4_1": 0.1, "Q5_0": 0.1, "Q5_1": 0.05},
    **{"MXFP4": 0.38, "IQ4_NL": 0.2, "IQ4_XS": 0.27},
    **{"Q2_K": 0.85, "Q3_K": 0.5, "Q4_K": 0.22, "Q5_K": 0.13, "Q6_K": 0.045},
}
# what a float16 below its normal range may add, absolute: as a scale, as one of two (K-types), as the value itself
SLACK, SLACK_K, SLACK_F16 = 4e-6, 1.3e-4, 3e-8


PIECE = 1 << 17  # pairs at a time: what is made of them stays in the cache, and calls cost little beside them
TINY = 1e-3  # of the signal: below it a difference of sums has lost digits
LEAST = 1e-25  # a sum of float32 squares from which those that vanished are nothing
SHORT = 1 << 13  # OpenBLAS shares longer dot products among threads, and their last bits would depend on how many


@dataclass
class Figures:
    """Sums over pairs of values, to a millionth; ``worst`` is the largest ratio of block error to block size (see
    BLOCK_BOUND)."""

    count: int = 0
    error: float = 0.0
    signal: float = 0.0
    value: float = 0.0
    product: float = 0.0
    maximum: float = 0.0
    worst: float = 0.0
    finite: bool = True

    def merge(self, other: Figures) -> None:
        """Add what ``other`` has seen."""
        self.count += other.count
        self.error += other.error
        self.signal += other.signal
        self.value += other.value
        self.product += other.product
        self.maximum = max(self.maximum, other.maximum)
        self.worst = max(self.worst, other.worst)
        self.finite = self.finite and other.finite

    @property
    def rmse(self) -> float:
        return math.sqrt(self.error / self.count) if self.count else 0.0

    @property
    def snr_db(self) -> float | None:
        """Signal to noise in dB; None without noise or signal."""
        return 10 * math.log10(self.signal / self.error) if self.error and self.signal else None

    @property
    def cosine(self) -> float:
        norm = math.sqrt(self.signal * self.value)
        return self.product / norm if norm else float(self.signal == self.value)


class Meter:
    """Adds pairs of arrays to figures, through room that is made once.

    Pairs are taken a piece at a time and sideways: row r of a piece holds item r of all its blocks, so that the
    largest values of the blocks come from long vector operations.
    """

    def __init__(self) -> None:
        self._narrow = np.empty((3, PIECE), np.float32)
        self._wide = np.empty((2, PIECE), np.float64)

    def add(self, figures: Figures, source: F32, value: F32, block: int, slack: float = 0.0) -> None:
        """Add float32 arrays of one shape; the last axis is split in blocks of ``block``.

        Of arrays that hold NaN or Inf only the count is added, and ``finite`` falls.
        """
        found = Figures()
        whole = source.shape[-1] % block == 0 and block <= PIECE
        step = PIECE // block * block if whole else PIECE
        x, y = source.reshape(-1), value.reshape(-1)
        with np.errstate(invalid="ignore", over="ignore"):
            for at in range(0, x.size, step):
                self._piece(found, x[at : at + step], y[at : at + step], block if whole else 0, slack)
                if not found.finite:
                    found = Figures(finite=False)
                    break
        found.count = source.size
        figures.merge(found)

    def _piece(self, found: Figures, source: F32, value: F32, block: int, slack: float) -> None:
        n = source.size
        a, b, gap = self._narrow[:, :n]
        _sideways(source, a, block)
        _sideways(value, b, block)
        np.subtract(a, b, out=gap)
        signal, cross, error = _dot(a, a), _dot(a, gap), _dot(gap, gap)
        values, product = signal - 2 * cross + error, signal - cross  # of y = x - gap
        least, most = min(signal, error), max(signal, error)
        if not (least >= LEAST and most < math.inf and values >= TINY * signal):
            gap, signal, error, values, product = self._exactly(a, b)
        if not math.isfinite(signal + error):
            found.finite = False
            return
        found.signal += signal
        found.value += values
        found.product += product
        if error == 0.0:
            return
        found.error += error
        np.abs(gap, out=gap)
        if not block:
            found.maximum = max(found.maximum, float(gap.max(initial=0.0)))
            return
        errors = _block_maxima(gap, block)
        found.maximum = max(found.maximum, float(errors.max(initial=0.0)))
        np.abs(a, out=a)
        tops = _block_maxima(a, block).astype(np.float64)
        gaps = np.maximum(errors - slack, 0)
        ratios = np.divide(gaps, tops, out=np.where(gaps > 0, np.inf, 0.0), where=tops > 0)
        found.worst = max(found.worst, float(ratios.max(initial=0.0)))

    def _exactly(self, a: F32, b: F32) -> tuple[npt.NDArray[np.float64], float, float, float, float]:
        """``a - b`` and a piece's signal, error, values and product in float64, where squares of float32 neither
        overflow nor vanish and no sum is a difference of others."""
        x, gap = self._wide[:, : a.size]
        np.copyto(x, a)
        np.copyto(gap, b)
        values, product = _dot(gap, gap), _dot(x, gap)
        np.subtract(x, gap, out=gap)
        return gap, _dot(x, x), _dot(gap, gap), values, product


def _dot(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    whole = x.size // SHORT * SHORT
    rows = np.matmul(x[:whole].reshape(-1, 1, SHORT), y[:whole].reshape(-1, SHORT, 1)) if whole else None
    rest = float(np.dot(x[whole:], y[whole:])) if whole < x.size else 0.0
    return rest if rows is None else float(rows.sum(dtype=np.float64)) + rest


def _lanes(block: int) -> int:
    """Neighbours that move as one item, which numpy copies faster than one by one."""
    return 4 if block % 4 == 0 else 1


def _sideways(flat: F32, out: F32, block: int) -> None:
    """Item after item of all blocks of ``flat`` [n]; in order for ``block`` 0."""
    if not block:
        np.copyto(out, flat)
        return
    item = {1: np.float32, 4: np.complex128}[_lanes(block)]
    source: npt.NDArray[Any] = flat.view(item).reshape(-1, block // _lanes(block))
    np.copyto(out.view(item).reshape(source.shape[::-1]), source.T)


def _block_maxima(values: npt.NDArray[Any], block: int) -> npt.NDArray[Any]:
    """The maximum of each block of ``values``, which lie sideways."""
    lanes = _lanes(block)
    tops: npt.NDArray[Any] = np.maximum.reduce(values.reshape(block // lanes, -1), axis=0)
    if lanes == 1:
        return tops
    first, second, third, fourth = tops.reshape(-1, 4).T
    result: npt.NDArray[Any] = np.maximum(np.maximum(first, second), np.maximum(third, fourth))
    return result


def slack_of(kind: TensorType) -> float:
    """The absolute error that the type's own scales may cause in very small values."""
    if BLOCK[kind][0] == 1:
        return SLACK_F16 if kind is TensorType.F16 else 0.0
    return SLACK_K if kind.name.endswith(("_K", "_XS")) else SLACK


def dequantizer(kind: TensorType) -> tuple[Callable[[Bytes], F32], str]:
    """(uint8 [n, row bytes] -> float32 [n, row length], whose it is)."""
    if kind is TensorType.F32:
        return lambda data: data.view("<f4"), "numpy"
    if kind is TensorType.F16:
        return lambda data: data.view("<f2").astype(np.float32), "numpy"
    if kind is TensorType.BF16:
        return lambda data: as_float(data.view("<u2")), "numpy"
    library = gguf_library()
    quants = library.quants
    try:
        theirs = library.GGMLQuantizationType(int(kind))
        quants.dequantize(np.zeros((1, BLOCK[kind][1]), dtype=np.uint8), theirs)
    except (NotImplementedError, ValueError, KeyError):
        return _ours(kind), "quant"

    def decode(data: Bytes) -> F32:
        with np.errstate(all="ignore"):  # a damaged scale shows in the values
            result: F32 = quants.dequantize(data, theirs)
        return result

    return decode, "gguf"


def _ours(kind: TensorType) -> Callable[[Bytes], F32]:
    try:
        quant.dequantize(np.zeros((1, BLOCK[kind][1]), dtype=np.uint8), kind.name)
    except quant.QuantError:
        raise ContainerError(f"tensors of type {kind.name} cannot be decoded here") from None
    return lambda data: quant.dequantize(data, kind.name)


class FileRows:
    """Rows of a GGUF's tensors, read into memory piece by piece (a mapping would count as memory)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = open_read(path)

    def __enter__(self) -> FileRows:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def rows(self, info: TensorInfo, start: int, stop: int) -> Bytes:
        """uint8 [stop - start, bytes per row]."""
        width = info.nbytes // info.rows
        return read_rows(self.fd, info.offset + start * width, (stop - start, width), info.name)


def read_rows(fd: int, offset: int, shape: tuple[int, int], name: str) -> Bytes:
    """uint8 [rows, bytes per row] of tensor ``name`` from byte ``offset`` of an open GGUF."""
    rows = np.empty(shape, np.uint8)
    if not read_all(fd, rows.reshape(-1).data, offset):
        raise ContainerError(f"tensor {name!r} ends early: the file has become shorter")
    return rows


def same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two contiguous arrays hold the same bytes."""
    if a.nbytes != b.nbytes:
        return False
    item = next(size for size in (8, 4, 2, 1) if a.nbytes % size == 0)
    x, y = (each.reshape(-1).view(f"u{item}") for each in (a, b))
    return bool(np.array_equal(x, y))


def chunks(start: int, stop: int, columns: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of the rows from ``start`` to ``stop`` with about CHUNK elements, each a multiple of ``step`` long."""
    per = max(step, CHUNK // columns // step * step)
    for at in range(start, stop, per):
        yield at, min(at + per, stop)


def as_float(rows: npt.NDArray[Any]) -> F32:
    """Source rows as float32; bf16 arrives as uint16 bit patterns."""
    if rows.dtype == np.uint16:
        bits = rows.astype(np.uint32)
        np.left_shift(bits, np.uint32(16), out=bits)
        return bits.view(np.float32)
    return rows.astype(np.float32, copy=False)

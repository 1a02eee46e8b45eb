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
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_convert.container.reader import TensorInfo
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.errors import ContainerError

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


@dataclass
class Figures:
    """Sums over pairs of values; ``worst`` is the largest ratio of block error to block size (see BLOCK_BOUND)."""

    count: int = 0
    error: float = 0.0
    signal: float = 0.0
    value: float = 0.0
    product: float = 0.0
    maximum: float = 0.0
    worst: float = 0.0
    finite: bool = True

    def add(self, source: F32, value: F32, block: int, slack: float = 0.0) -> None:
        """Add float32 arrays of one shape; the last axis is split in blocks of ``block``."""
        self.count += source.size
        if not (np.isfinite(source).all() and np.isfinite(value).all()):
            self.finite = False
            return
        x, y = source.astype(np.float64), value.astype(np.float64)
        gap = np.abs(x - y)
        self.error += float(np.vdot(gap, gap))
        self.signal += float(np.vdot(x, x))
        self.value += float(np.vdot(y, y))
        self.product += float(np.vdot(x, y))
        self.maximum = max(self.maximum, float(gap.max(initial=0.0)))
        if x.shape[-1] % block == 0:
            tops = np.abs(x).reshape(-1, block).max(axis=1)
            gaps = np.maximum(gap.reshape(-1, block).max(axis=1) - slack, 0)
            ratios = np.divide(gaps, tops, out=np.where(gaps > 0, np.inf, 0.0), where=tops > 0)
            self.worst = max(self.worst, float(ratios.max(initial=0.0)))

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
        return lambda data: (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32), "numpy"
    from gguf import GGMLQuantizationType, quants

    try:
        theirs = GGMLQuantizationType(int(kind))
        quants.dequantize(np.zeros((1, BLOCK[kind][1]), dtype=np.uint8), theirs)
    except (NotImplementedError, ValueError, KeyError):
        return _ours(kind), "quant"

    def decode(data: Bytes) -> F32:
        with np.errstate(all="ignore"):  # a damaged scale shows in the values
            result: F32 = quants.dequantize(data, theirs)
        return result

    return decode, "gguf"


def _ours(kind: TensorType) -> Callable[[Bytes], F32]:
    import quant

    try:
        quant.dequantize(np.zeros((1, BLOCK[kind][1]), dtype=np.uint8), kind.name)
    except quant.QuantError:
        raise ContainerError(f"tensors of type {kind.name} cannot be decoded here") from None
    return lambda data: quant.dequantize(data, kind.name)


class FileRows:
    """Rows of a GGUF's tensors, read into memory piece by piece (a mapping would count as memory)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY)

    def __enter__(self) -> FileRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def rows(self, info: TensorInfo, start: int, stop: int) -> Bytes:
        """uint8 [stop - start, bytes per row]."""
        width = info.nbytes // info.rows
        data = os.pread(self._fd, (stop - start) * width, info.offset + start * width)
        if len(data) != (stop - start) * width:
            raise ContainerError(f"{self._path.name}: tensor {info.name!r} ends early")
        return np.frombuffer(data, dtype=np.uint8).reshape(stop - start, width)


def chunks(info: TensorInfo, step: int = 1) -> Iterator[tuple[int, int]]:
    """Row ranges of about CHUNK elements that start at multiples of ``step``."""
    per = max(step, CHUNK // info.shape[-1] // step * step)
    for start in range(0, info.rows, per):
        yield start, min(start + per, info.rows)


def as_float(rows: npt.NDArray[Any]) -> F32:
    """Source rows as float32; bf16 arrives as uint16 bit patterns."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return rows.astype(np.float32, copy=False)

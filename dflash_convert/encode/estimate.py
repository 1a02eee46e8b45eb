"""How long a conversion will take, from a sample encoded on this machine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable

import numpy as np

import quant
from dflash_convert.container.types import tensor_nbytes
from dflash_convert.container.writer import Entry
from dflash_convert.encode.pool import SMALL

ROWS, COLUMNS = 8, 4096  # of the sample: some milliseconds for the slowest types
DISK = 400e6  # bytes a second that any disk in use reads and writes


def seconds(files: Iterable[Iterable[Entry]], workers: int) -> float | None:
    """For the outputs ``files`` (their tensors) with ``workers`` processes; None for a moment's work.

    Kernels share the workers, reading and writing does not get faster with them.
    """
    elements: Counter[str] = Counter()
    nbytes = 0
    for entries in files:
        for entry in entries:
            elements[entry.type.name] += math.prod(entry.shape)
            nbytes += tensor_nbytes(entry.type, entry.shape)
    if sum(elements.values()) < SMALL:
        return None
    work = sum(count * _cost(kind) for kind, count in elements.items() if kind in quant.TYPES)
    return work / max(workers, 1) + nbytes / DISK


def _cost(kind: str) -> float:
    """Seconds an element takes in one process."""
    sample = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    quant.quantize(sample, kind, threads=1)  # tables and buffers are made once
    begin = time.perf_counter()
    quant.quantize(sample, kind, threads=1)
    return (time.perf_counter() - begin) / sample.size

"""Streaming encoder: one workspace per worker, rows in, blocks out in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .errors import NonFiniteError, ScaleOverflowError, ShapeError
from .half import F32
from .iq4 import IQ4NLKernel, IQ4XSKernel
from .kernel import GOOD, Array, EncodeKernel
from .kquant import Q2KKernel, Q4KKernel, Q5KKernel
from .legacy import Q4Kernel, Q5Kernel, Q8Kernel, Q41Kernel, Q51Kernel
from .load import SOURCE_DTYPES
from .mxfp4 import MXFP4Kernel
from .plain import BF16Kernel, F16Kernel, F32Kernel, bad_source
from .q3k import Q3KKernel
from .q6k import Q6KKernel
from .types import quant_type
from .weighted import WeightedAffine, WeightedSymmetric

CHUNK = 1 << 18  # elements a kernel call: below it numpy's call overhead shows, above it the cache is left
_LARGE_CHUNK = {"Q3_K": 1 << 20, "Q4_1": 1 << 19}  # the many short calls of these repay a larger one

_KERNELS: dict[str, Callable[[int], EncodeKernel]] = {
    "F32": F32Kernel,
    "F16": F16Kernel,
    "BF16": BF16Kernel,
    "Q8_0": Q8Kernel,
    "Q4_0": Q4Kernel,
    "Q4_1": Q41Kernel,
    "Q5_0": Q5Kernel,
    "Q5_1": Q51Kernel,
    "MXFP4": MXFP4Kernel,
    "IQ4_NL": IQ4NLKernel,
    "IQ4_XS": IQ4XSKernel,
    "Q2_K": Q2KKernel,
    "Q3_K": Q3KKernel,
    "Q4_K": Q4KKernel,
    "Q5_K": Q5KKernel,
    "Q6_K": Q6KKernel,
}

_WEIGHTED: dict[str, Callable[[int, F32], EncodeKernel]] = {
    "Q4_0": partial(WeightedSymmetric, nmax=15),
    "Q4_1": partial(WeightedAffine, nmax=15),
    "Q5_0": partial(WeightedSymmetric, nmax=31),
    "Q5_1": partial(WeightedAffine, nmax=31),
    "IQ4_NL": IQ4NLKernel,
    "IQ4_XS": IQ4XSKernel,
    "Q2_K": Q2KKernel,
    "Q3_K": Q3KKernel,
    "Q4_K": Q4KKernel,
    "Q5_K": Q5KKernel,
    "Q6_K": Q6KKernel,
}


class Encoder:
    """Encodes rows of ``row_length`` elements as ``type_name``.

    The workspace is allocated here, once; ``encode`` allocates nothing that grows with the rows. Use one
    Encoder per thread or process. ``rows_per_call`` rows fill the workspace once: passing that many (or a
    multiple) to ``encode`` is fastest. A row may be longer than the workspace.
    """

    def __init__(
        self, type_name: str, row_length: int, *, imatrix: F32 | None = None, chunk: int | None = None
    ) -> None:
        self.type = quant_type(type_name)
        self.row_length = row_length
        self.row_nbytes = self.type.row_nbytes(row_length)
        chunk = chunk or _LARGE_CHUNK.get(type_name, CHUNK)
        self.rows_per_call = max(1, chunk // row_length)
        if imatrix is None or not self.type.imatrix:
            self._blocks = max(1, chunk // self.type.block)
            self._kernel = _KERNELS[type_name](self._blocks * self.type.block)
        else:  # whole rows: some weights depend on the row's mean square
            _check_imatrix(imatrix, row_length)
            self._blocks = self.rows_per_call * row_length // self.type.block
            self._kernel = _WEIGHTED[type_name](self._blocks * self.type.block, imatrix)

    def encode(self, src: Array, out: NDArray[np.uint8]) -> None:
        """Encode ``src`` [n, row_length] into ``out`` uint8 [n, row_nbytes]; both C-contiguous.

        ``src`` is float32, float16, or bf16 bit patterns as uint16. NonFiniteError or ScaleOverflowError
        (with ``row``) when a row cannot be represented; ``out`` is then partly written.
        """
        flat, records = self._check(src, out)
        block = self.type.block
        with np.errstate(all="ignore"):
            for start in range(0, len(records), self._blocks):
                stop = min(start + self._blocks, len(records))
                bad = self._kernel.encode(flat[start * block : stop * block], records[start:stop], start)
                if bad != GOOD:
                    raise self._error(src, (start + bad) * block // self.row_length)

    def _check(self, src: Array, out: NDArray[np.uint8]) -> tuple[Array, NDArray[np.uint8]]:
        if src.dtype.name not in SOURCE_DTYPES:
            raise ShapeError(f"rows must be float32, float16 or bf16 patterns (uint16), not {src.dtype}")
        if src.ndim != 2 or src.shape[1] != self.row_length:
            raise ShapeError(f"rows have shape {src.shape}, not [n, {self.row_length}]")
        if out.dtype != np.uint8 or out.shape != (src.shape[0], self.row_nbytes):
            wanted = f"uint8 {(src.shape[0], self.row_nbytes)}"
            raise ShapeError(f"the output is {out.dtype} {out.shape}, not {wanted}")
        if not (src.flags.c_contiguous and out.flags.c_contiguous):
            raise ShapeError("rows and output must be C-contiguous")
        return src.reshape(-1), out.reshape(-1, self.type.nbytes)

    def _error(self, src: Array, row: int) -> Exception:
        name = self.type.name
        if bad_source(src[row]) != GOOD:
            return NonFiniteError(f"row {row} holds NaN or Inf", row=row)
        return ScaleOverflowError(f"a block scale of row {row} is too large for {name}", row=row)


def _check_imatrix(imatrix: F32, row_length: int) -> None:
    if imatrix.dtype != np.float32 or imatrix.shape != (row_length,):
        raise ShapeError(f"the importance weights are {imatrix.dtype} {imatrix.shape}, not float32 {(row_length,)}")
    if not (np.isfinite(imatrix).all() and (imatrix >= 0).all()):
        raise NonFiniteError("the importance weights hold NaN, Inf or a negative value")

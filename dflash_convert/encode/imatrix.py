"""llama.cpp's importance matrix files (GGUF): mean squared activations that weigh a tensor's columns.

Layout (llama-imatrix): for every tensor NAME of the model ``NAME.in_sum2`` float32 [1, columns] and
``NAME.counts`` float32 [1, 1]; keys imatrix.datasets, imatrix.chunk_count, imatrix.chunk_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, TensorType, string, u32
from dflash_convert.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

METADATA = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")


@dataclass(frozen=True)
class Imatrix:
    """An open file; ``names`` are the tensors that have weights."""

    gguf: Gguf
    names: tuple[str, ...]

    def weights(self, name: str, columns: int) -> npt.NDArray[np.float32] | None:
        """float32 [columns], or None when the file says nothing about ``name``.

        InputError when its length is another, or a weight is negative or not finite.  A tensor that was never
        reached in calibration (count 0) or whose sums are all zero weighs every column alike.
        """
        import numpy as np

        if name not in self.names:
            return None
        sums, counts = (self._floats(f"{name}.{part}") for part in ("in_sum2", "counts"))
        if sums.size != columns:
            raise InputError(f"{self.gguf.path}: {name} has {sums.size} weights, its rows have {columns} elements")
        if counts[0] <= 0 or not sums.any():
            return np.ones(columns, np.float32)
        values: npt.NDArray[np.float32] = sums / counts[0]
        if not np.isfinite(values).all() or values.min() < 0:
            raise InputError(f"{self.gguf.path}: {name} has weights that are negative or not finite")
        return values

    def _floats(self, name: str) -> npt.NDArray[np.float32]:
        import numpy as np

        info = self.gguf.tensors.get(name)
        if info is None or info.type is not TensorType.F32:
            raise InputError(f"{self.gguf.path}: tensor {name} is missing or not F32")
        return self.gguf.data(name).reshape(-1).view(np.float32)

    def keys(self) -> list[KV]:
        """What llama-quantize notes about the matrix; the file's name without its directory."""
        keys = [string("quantize.imatrix.file", self.gguf.path.name)]
        datasets = self.gguf.get("imatrix.datasets")
        if len(datasets):
            keys.append(string("quantize.imatrix.dataset", datasets[0]))
        keys.append(u32("quantize.imatrix.entries_count", len(self.names)))
        chunks = self.gguf.get("imatrix.chunk_count")
        return [*keys, u32("quantize.imatrix.chunks_count", chunks)] if chunks else keys


def open_imatrix(path: Path) -> Imatrix:
    """InputError when ``path`` is no importance matrix in GGUF form."""
    gguf = open_gguf(path)
    missing = [key for key in METADATA if key not in gguf.keys]
    if missing or gguf.get("general.type") not in ("imatrix", None):
        raise InputError(
            f"{path}: not an importance matrix{': ' + missing[0] + ' is missing' if missing else ''}",
            tip="make one with llama-imatrix; its old .dat format must be converted to GGUF first",
        )
    names = tuple(name.removesuffix(".in_sum2") for name in gguf.tensors if name.endswith(".in_sum2"))
    if not names:
        raise InputError(f"{path}: holds no importance weights")
    return Imatrix(gguf, names)

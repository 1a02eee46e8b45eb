"""The map of a reduced draft vocabulary in a checkpoint, judged before it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_convert.checkpoint import Reader, SourceTensor
from dflash_convert.drafter import Weight
from dflash_convert.errors import CheckpointError
from dflash_convert.families.backbone import Sizes
from dflash_convert.reduced import map_fault

INTEGERS: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}
MARKS: dict[str, np.dtype[Any]] = {"BOOL": np.dtype("u1"), "U8": np.dtype("u1")}
CURES = {
    "absolute": "d2t[i] must hold the target's id minus i, as every public trainer writes it",
    "selection": "take d2t and t2d from the same training run",
}
TIP = "llama.cpp aborts on such a map or drafts noise; take d2t from the drafter's own training run"


def check(weights: Sequence[Weight], sizes: Sizes) -> None:
    """CheckpointError for a d2t whose offsets do not lead to distinct tokens of the target."""
    tensors = {w.name.removeprefix("model."): w.sources[0] for w in weights if not w.scheme}
    source = tensors.get("d2t")
    if source is not None and source.dtype not in INTEGERS:
        raise CheckpointError(f"{source.file}: d2t is {source.dtype}, expected {' or '.join(INTEGERS)}", tip=TIP)
    stored = _values(source, INTEGERS, sizes.vocab)
    if source is None or stored is None:
        return
    marks = _values(tensors.get("t2d"), MARKS, sizes.vocab)
    selection = None if marks is None or marks.size != sizes.vocab else marks.astype(bool)
    fault = map_fault(stored, sizes.vocab, offsets=True, selection=selection)
    if fault is not None:
        raise CheckpointError(f"{source.file}: d2t {fault.text}", tip=CURES.get(fault.kind, TIP))


def _values(source: SourceTensor | None, dtypes: dict[str, np.dtype[Any]], limit: int) -> npt.NDArray[Any] | None:
    """The tensor's values [n]; None for another type or more than ``limit`` of them, which other checks refuse."""
    dtype = dtypes.get(source.dtype) if source is not None else None
    if source is None or dtype is None or source.nbytes > limit * dtype.itemsize:
        return None
    buffer = np.empty(source.nbytes, dtype=np.uint8)
    with Reader() as reader:
        reader.into(source, 0, buffer.data)
    return buffer.view(dtype)

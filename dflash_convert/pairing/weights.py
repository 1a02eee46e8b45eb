"""Single rows of the tables that drafter and target may share: embeddings and output head, a few at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import quant
from dflash_convert.checkpoint import Reader, SourceTensor, open_checkpoint
from dflash_convert.container.reader import Gguf
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.transforms import RowSource, float32, row_count
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.tables import EMBEDDINGS, HEAD, find_table

Rows = NDArray[np.float32]
DTYPES = ("BF16", "F16", "F32", "F64")


class Tables(Protocol):
    """Weights of one side, by their GGUF names."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """None for a tensor that is not there or that cannot be read here."""

    def rows(self, name: str, ids: Sequence[int]) -> Rows:
        """float32 [len(ids), row length]; nothing but these rows is read."""


class GgufTables:
    """A GGUF's tensors, or those of all the parts of one, dequantized row by row."""

    def __init__(self, *parts: Gguf) -> None:
        self._parts = {name: part for part in parts for name in part.tensors}

    def shape(self, name: str) -> tuple[int, ...] | None:
        info = self._parts[name].tensors[name] if name in self._parts else None
        return info.shape if info is not None and info.type.name in quant.TYPES else None

    def rows(self, name: str, ids: Sequence[int]) -> Rows:
        part = self._parts[name]
        chosen = part.data(name)[np.asarray(ids, dtype=np.int64)]
        return np.asarray(quant.dequantize(chosen, part.tensors[name].type.name), np.float32)


class PlannedTables:
    """Tensors of a checkpoint as the conversion would read them."""

    def __init__(self, plans: Mapping[str, TensorPlan]) -> None:
        self._plans = plans

    def shape(self, name: str) -> tuple[int, ...] | None:
        plan = self._plans.get(name)
        return None if plan is None else plan.shape

    def rows(self, name: str, ids: Sequence[int]) -> Rows:
        plan = self._plans[name]
        with Reader() as reader:
            source = RowSource(reader)
            return np.concatenate([_values(source.rows(plan, i, i + 1), plan) for i in ids])


def _values(rows: NDArray[Any], plan: TensorPlan) -> Rows:
    if rows.dtype == np.uint8:  # blocks of a GGUF's tensor
        return np.asarray(quant.dequantize(rows, plan.sources[0].dtype), np.float32)
    return float32(rows)


def target_tables(directory: Path) -> Tables | None:
    """The embeddings and head in a target's directory; None when its weights are not (all) there."""
    if not any(directory.glob("*.safetensors")):
        return None
    try:
        tensors = open_checkpoint(directory).tensors
    except (CheckpointError, ConfigError):
        return None
    found = {EMBEDDINGS: find_table(tensors, "embed_tokens.weight"), HEAD: find_table(tensors, "lm_head.weight")}
    plans = {name: _plan(name, source) for name, source in found.items() if source is not None}
    return PlannedTables({name: plan for name, plan in plans.items() if plan is not None})


def _plan(name: str, source: SourceTensor) -> TensorPlan | None:
    if source.dtype not in DTYPES or len(source.shape) != 2:
        return None
    return TensorPlan(name, source.shape, (source,))


def read_integers(plan: TensorPlan) -> NDArray[np.int64]:
    """A planned integer tensor (d2t) as it would be written, int64 [entries]."""
    with Reader() as reader:
        rows = RowSource(reader).rows(plan, 0, row_count(plan.shape))
    return np.array(rows, dtype=np.int64).reshape(-1)

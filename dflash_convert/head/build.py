"""A drafter GGUF with an output head of its own, planned like any other file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dflash_convert import llama
from dflash_convert.checkpoint import SourceTensor
from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, TensorType, array_length, f32, string, u32
from dflash_convert.drafter import TensorPlan
from dflash_convert.errors import FamilyError, InputError, PairingError, UsageError
from dflash_convert.forks.dialects import refuse_fork
from dflash_convert.head.matrix import Matrices, digest
from dflash_convert.plan import FilePlan, unquantized_type
from dflash_convert.quantize import tensor_plan
from dflash_convert.reduced import map_fault
from dflash_convert.tables import EMBEDDINGS as TABLE
from dflash_convert.tables import HEAD

if TYPE_CHECKING:
    from dflash_convert.head.ranking import Coverage, Ranking

Ids = NDArray[np.int64]
MAP, MARKOV = "d2t", "markov_w2.weight"
PREFIX = "dflash_convert.head."


@dataclass(frozen=True)
class Head:
    """What to write: ``ids`` int64 [rows], the target's tokens that the head's rows stand for, or None for all of
    them without a map. ``head_type`` and ``table_type`` are ggml types; None copies the rows as they are stored.
    ``own_table``: embeddings of the drafter's own too, so that it borrows nothing."""

    ids: Ids | None
    head_type: str | None = None
    own_table: bool = False
    table_type: str | None = None
    ranking: Ranking | None = None
    coverage: Coverage | None = None


def refuse(drafter: Gguf) -> None:
    """FamilyError for a file whose graph reads no head of its own with a map."""
    refuse_fork(drafter)
    row = llama.drafter(drafter.architecture)
    if row is None or not any(MAP in part.tensors for part in row.parts):
        raise FamilyError(
            f"{drafter.path.name}: architecture {drafter.architecture!r} has no reduced head in llama.cpp",
            tip="a head of its own is for DFlash, DFlash2, DSpark and EAGLE-3 drafters",
        )
    if row.key(llama.HYPER) in drafter.keys:
        raise FamilyError(
            f"{drafter.path.name} is a DeepSeek-V4 DSpark drafter: llama.cpp's graph for it reads no d2t",
            tip="it can only use the target's own head",
        )
    if not row.block and HEAD not in drafter.tensors:
        raise FamilyError(
            f"{drafter.path.name} has no head of its own, which an {row.variants[0].family} drafter needs"
        )


def current_map(drafter: Gguf) -> Ids | None:
    """The file's own ``d2t`` as token ids [rows]; InputError when it is none."""
    info = drafter.tensors.get(MAP)
    if info is None:
        return None
    if info.type is not TensorType.I64:
        raise InputError(f"{drafter.path.name}: d2t is {info.type.name}, and llama.cpp reads I64 only")
    ids: Ids = drafter.data(MAP).reshape(-1).view("<i8").astype(np.int64)
    fault = map_fault(ids, array_length(drafter.get("tokenizer.ggml.tokens")) or None, offsets=False)
    if fault is not None:
        raise InputError(f"{drafter.path.name}: d2t {fault.text}", tip="convert the drafter again")
    return ids


def plan_head(drafter: Gguf, target: Matrices, head: Head) -> FilePlan:
    """Keys and tensors of the output: the drafter's own, with head, map and the Markov rows that go with it."""
    refuse(drafter)
    size = array_length(drafter.get("tokenizer.ggml.tokens"))
    hidden = drafter.get(f"{drafter.architecture}.embedding_length")
    _check_width(drafter, target, hidden)
    before = current_map(drafter)
    source = tensor_plan(drafter, HEAD).sources[0] if HEAD in drafter.tensors else target.head
    ids, rows = _rows(head.ids, before, source, size)
    plans: dict[str, TensorPlan] = {}
    if head.own_table and TABLE not in drafter.tensors:
        _check_rows(target.table, size)
        plans[TABLE] = _whole(TABLE, target.table, head.table_type)
    plans[HEAD] = _typed(selected(HEAD, source, rows), head.head_type)
    kept = [name for name in drafter.tensors if name not in (*plans, HEAD, MAP)]
    for name in kept:
        plans[name] = tensor_plan(drafter, name)
    if MARKOV in plans:
        plans[MARKOV] = selected(MARKOV, plans[MARKOV].sources[0], rows)
    if ids is not None:
        plans[MAP] = TensorPlan(MAP, ids.shape, (), constant=ids, type="I64")
    typed = tuple((plan, TensorType[plan.type] if plan.type else unquantized_type(plan)) for plan in plans.values())
    return FilePlan(str(drafter.get("general.file_type")), _keys(drafter, target, head, ids, source), typed)


def _check_width(drafter: Gguf, target: Matrices, hidden: object) -> None:
    width = target.head.shape[1]
    own = drafter.tensors.get(HEAD)
    if own is None and hidden != width:
        raise PairingError(
            f"{target.name}: rows of the output matrix have {width} values, the drafter's hidden size is {hidden}",
            tip="this drafter was trained for another target",
        )


def _check_rows(source: SourceTensor, size: int) -> None:
    if source.shape[0] != size:
        raise PairingError(
            f"{source.file.name}: {source.name!r} has {source.shape[0]} rows, the drafter's vocabulary {size} tokens",
            tip="keep a number of rows (--keep N), or convert the drafter again with this target's tokenizer",
        )


def _rows(wanted: Ids | None, before: Ids | None, source: SourceTensor, size: int) -> tuple[Ids | None, Ids | None]:
    """(token ids of the new rows, their places in ``source``); None: all of them, without a map."""
    if wanted is None:
        if before is not None:
            raise UsageError("--full needs a head over the whole vocabulary, and this drafter's has fewer rows")
        _check_rows(source, size)
        return None, None
    fault = map_fault(wanted, min(size, source.shape[0]) if before is None else size, offsets=False)
    if fault is not None:
        raise PairingError(f"the rows to keep: d2t {fault.text}", tip="the ranking belongs to another target")
    if before is None:
        return wanted, wanted
    order = np.argsort(before)
    at = np.searchsorted(before[order], wanted)
    at = np.minimum(at, before.size - 1)
    if not np.array_equal(before[order][at], wanted):
        raise UsageError("rows can only be chosen among those that the drafter's own head has")
    return wanted, order[at].astype(np.int64)


def _whole(name: str, source: SourceTensor, kind: str | None) -> TensorPlan:
    return _typed(TensorPlan(name, source.shape, (source,)), kind)


def selected(name: str, source: SourceTensor, rows: Ids | None) -> TensorPlan:
    """Rows of a matrix by their numbers, in that order; None: all of them."""
    if rows is None:
        return TensorPlan(name, source.shape, (source,))
    return TensorPlan(name, (rows.size, source.shape[1]), (source,), transform="select", constant=rows)


def _typed(plan: TensorPlan, kind: str | None) -> TensorPlan:
    return plan if kind is None else replace(plan, type=kind)


def _keys(drafter: Gguf, target: Matrices, head: Head, ids: Ids | None, source: SourceTensor) -> tuple[KV, ...]:
    keys = [kv for name, kv in drafter.keys.items() if not name.startswith(PREFIX)]
    rows = source.shape[0] if ids is None else ids.size
    name = drafter.get("general.name")
    if ids is not None and isinstance(name, str):
        at = next(i for i, kv in enumerate(keys) if kv.name == "general.name")
        keys[at] = string("general.name", f"{name}-V{short(rows)}")
    keys += [
        u32(f"{PREFIX}rows", rows),
        string(f"{PREFIX}source", "own" if source.file == drafter.path else target.name),
        string(f"{PREFIX}matrix_sha256", digest(source)),
    ]
    if head.ranking is not None:
        keys += [
            string(f"{PREFIX}ranking", head.ranking.source),
            string(f"{PREFIX}ranking_sha256", head.ranking.digest),
        ]
    if head.coverage is not None:
        keys.append(f32(f"{PREFIX}coverage", head.coverage.share))
    return tuple(keys)


def short(rows: int) -> str:
    """64k for 65536, else the number."""
    return f"{rows >> 10}k" if rows >= 1024 and rows % 1024 == 0 else str(rows)


def default_name(source: Path, rows: int | None) -> str:
    """Beside the source's name: ``-V64k``, or ``-own-head`` for a whole one."""
    return f"{source.stem}-{'own-head' if rows is None else 'V' + short(rows)}.gguf"

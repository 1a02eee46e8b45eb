"""A drafter GGUF with an output head of its own, planned like any other file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dflash_convert import llama
from dflash_convert.container.types import KV, TensorType, string
from dflash_convert.drafter import TensorPlan
from dflash_convert.errors import FamilyError, PairingError, UsageError
from dflash_convert.head.base import Base, Ids, check_own_head, current_map
from dflash_convert.head.matrix import Matrices
from dflash_convert.head.provenance import MAP, OWN, PREFIX, Provenance, provenance
from dflash_convert.llama import MARKOV_W2
from dflash_convert.plan import FilePlan, unquantized_type
from dflash_convert.reduced import map_fault
from dflash_convert.tables import EMBEDDINGS as TABLE
from dflash_convert.tables import HEAD

if TYPE_CHECKING:
    from dflash_convert.head.ranking import Coverage, Ranking


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


def refuse(drafter: Base) -> None:
    """FamilyError for a drafter whose graph reads no head of its own with a map; InputError for an own head or map
    that ``check`` refuses."""
    row = llama.drafter(drafter.architecture)
    if row is None or not any(MAP in part.tensors for part in row.parts):
        raise FamilyError(
            f"{drafter.name}: architecture {drafter.architecture!r} has no reduced head in llama.cpp",
            tip="a head of its own is for DFlash, DFlash2, DSpark and EAGLE-3 drafters",
        )
    if row.key(llama.HYPER) in drafter.keys:
        raise FamilyError(
            f"{drafter.name} is a DeepSeek-V4 DSpark drafter: llama.cpp's graph for it reads no d2t",
            tip="it can only use the target's own head",
        )
    check_own_head(drafter)


def plan_head(drafter: Base, target: Matrices, head: Head) -> FilePlan:
    """Keys and tensors of the output: the drafter's own, with head, map and the Markov rows that go with it."""
    refuse(drafter)
    before = current_map(drafter)
    own = HEAD in drafter.tensors
    if not own:
        _check_width(drafter, target)
    matrix = drafter.tensors[HEAD][0] if own else TensorPlan(HEAD, target.head.shape, (target.head,))
    ids, rows = _rows(head.ids, before, matrix.shape[0], drafter.size, "its own head" if own else target.name)
    kept = {name: typed for name, typed in drafter.tensors.items() if name not in (HEAD, MAP)}
    typed: dict[str, tuple[TensorPlan, TensorType]] = {}
    if head.own_table and TABLE not in drafter.tensors:
        _check_rows(target.name, target.table.shape[0], drafter.size)
        typed[TABLE] = _typed(TensorPlan(TABLE, target.table.shape, (target.table,)), None, head.table_type)
    typed[HEAD] = _typed(selected(matrix, rows), drafter.tensors[HEAD][1] if own else None, head.head_type)
    typed |= {name: each for name, each in kept.items() if name not in typed}
    if MARKOV_W2 in kept:
        typed[MARKOV_W2] = _typed(selected(kept[MARKOV_W2][0], rows), kept[MARKOV_W2][1], None)
    if ids is not None:
        typed[MAP] = TensorPlan(MAP, ids.shape, (), constant=ids, type="I64"), TensorType.I64
    keys = _keys(drafter, target, head, matrix.shape[0] if ids is None else ids.size)
    return replace(drafter.plan, keys=keys, tensors=tuple(typed.values()))


def _check_width(drafter: Base, target: Matrices) -> None:
    width, hidden = target.head.shape[1], drafter.get(f"{drafter.architecture}.embedding_length")
    if hidden != width:
        raise PairingError(
            f"{target.name}: rows of the output matrix have {width} values, the drafter's hidden size is {hidden}",
            tip="this drafter was trained for another target",
        )


def _check_rows(name: str, rows: int, size: int) -> None:
    if rows != size:
        raise PairingError(
            f"{name}: {rows} rows, the drafter's vocabulary has {size} tokens",
            tip="keep a number of rows (--keep N), or convert the drafter again with this target's tokenizer",
        )


def _rows(wanted: Ids | None, before: Ids | None, there: int, size: int, name: str) -> tuple[Ids | None, Ids | None]:
    """(token ids of the new rows, their places among the ``there`` rows); None: all of them, without a map."""
    if wanted is None:
        if before is not None:
            raise UsageError("--full needs a head over the whole vocabulary, and this drafter's has fewer rows")
        _check_rows(name, there, size)
        return None, None
    fault = map_fault(wanted, min(size, there) if before is None else size, offsets=False)
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


def selected(matrix: TensorPlan, rows: Ids | None) -> TensorPlan:
    """Rows of a matrix by their numbers, in that order; None: all of them."""
    if rows is None:
        return matrix
    if not matrix.sources:  # a constant
        return replace(matrix, shape=(rows.size, matrix.shape[-1]))
    if matrix.transform != "copy":
        raise ValueError(f"{matrix.name}: rows of a {matrix.transform} cannot be chosen")
    return replace(matrix, shape=(rows.size, matrix.shape[-1]), transform="select", constant=rows)


def _typed(plan: TensorPlan, own: TensorType | None, asked: str | None) -> tuple[TensorPlan, TensorType]:
    """With the type that was ``asked`` for, else that of the drafter's ``own`` tensor, else its source's."""
    if asked is not None:
        return replace(plan, type=asked), TensorType[asked]
    return plan, unquantized_type(plan) if own is None else own


def _keys(drafter: Base, target: Matrices, head: Head, rows: int) -> tuple[KV, ...]:
    keys = [kv for kv in drafter.plan.keys if not kv.name.startswith(PREFIX)]
    name = drafter.get("general.name")
    if head.ids is not None and isinstance(name, str):
        at = next(i for i, kv in enumerate(keys) if kv.name == "general.name")
        keys[at] = string("general.name", f"{name}-V{short(rows)}")
    own, ranking, coverage = HEAD in drafter.tensors, head.ranking, head.coverage
    before = provenance(drafter) if own else None  # rows of rows are the first target's
    said = Provenance(
        rows,
        (before.source if before else OWN) if own else target.name,
        (before.matrix_sha256 if before else None) if own else target.digest,
        None if ranking is None else ranking.source,
        None if ranking is None else ranking.digest,
        None if coverage is None else coverage.share,
        {} if coverage is None else coverage.by_kind,
    )
    return (*keys, *said.keys())


def short(rows: int) -> str:
    """64k for 65536, else the number."""
    return f"{rows >> 10}k" if rows >= 1024 and rows % 1024 == 0 else str(rows)


def suffix(rows: int | None) -> str:
    """Of a file's name: ``-V64k``, or ``-own-head`` for a whole one."""
    return "-own-head" if rows is None else f"-V{short(rows)}"


def default_name(source: Path, rows: int | None) -> str:
    return f"{source.stem}{suffix(rows)}.gguf"

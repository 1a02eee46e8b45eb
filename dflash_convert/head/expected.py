"""What a file with a head of its own should hold beyond what its checkpoint gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dflash_convert.container.reader import Gguf
from dflash_convert.drafter import Description, TensorPlan
from dflash_convert.errors import CheckpointError
from dflash_convert.head.base import Base, current_map
from dflash_convert.head.build import selected
from dflash_convert.head.matrix import target_matrices
from dflash_convert.head.provenance import MAP, provenance
from dflash_convert.llama import MARKOV_W2
from dflash_convert.notes import Note
from dflash_convert.tables import EMBEDDINGS as TABLE
from dflash_convert.tables import HEAD


def has_head(gguf: Gguf) -> bool:
    """Whether ``dflash-convert head`` made the file."""
    return provenance(gguf) is not None


def with_head(
    description: Description, gguf: Gguf, target: Path | None
) -> tuple[Description, frozenset[str], list[Note]]:
    """(``description`` with the head, map and embeddings of ``gguf``, tensors that cannot be compared, notes).

    Rows come from ``target``'s weights (a GGUF or a directory) where the checkpoint has none.
    """
    plans = {plan.name: plan for plan in description.tensors}
    if MAP in plans:
        note = Note("warning", "rows chosen among those of a reduced head are not compared with the checkpoint")
        names = {HEAD, MAP, MARKOV_W2} & gguf.tensors.keys()
        return _without(description, names), frozenset(names), [note]
    ids = current_map(Base.of(gguf))
    lacking = {HEAD, TABLE} & (gguf.tensors.keys() - plans.keys())
    theirs = _target_sources(target) if lacking else {}
    unknown = frozenset(lacking - theirs.keys())
    for name in (HEAD, TABLE):
        matrix = plans.get(name) or theirs.get(name)
        if name in gguf.tensors and matrix is not None:
            plans[name] = selected(matrix, ids if name == HEAD else None)
    if ids is not None:
        plans[MAP] = TensorPlan(MAP, ids.shape, (), constant=ids, type="I64")
        if MARKOV_W2 in plans:
            plans[MARKOV_W2] = selected(plans[MARKOV_W2], ids)
    notes = []
    if unknown:
        text = f"{', '.join(sorted(unknown))}: the target's rows are not available to compare with; give --target-gguf"
        notes.append(Note("warning", text))
    return replace(description, tensors=tuple(plans.values())), unknown, notes


def _without(description: Description, names: set[str]) -> Description:
    return replace(description, tensors=tuple(plan for plan in description.tensors if plan.name not in names))


def _target_sources(target: Path | None) -> dict[str, TensorPlan]:
    """The target's head and table; nothing when its weights are not there (a directory of config and tokenizer)."""
    if target is None:
        return {}
    try:
        found = target_matrices(target)
    except CheckpointError:
        return {}
    sources = {HEAD: found.head, TABLE: found.table}
    return {name: TensorPlan(name, source.shape, (source,)) for name, source in sources.items()}

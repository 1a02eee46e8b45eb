"""Own embeddings and heads against the target's: is what should be a copy one?

Every public trainer of the DFlash lineage (z-lab, SpecForge, DeepSpec, NeMo, ModelOpt) initialises embeddings and
head from the target and freezes them, so a table unlike the target's is an exporter's leftover: it loads, and the
drafts are noise.  EAGLE-3 heads and heads over a draft vocabulary may have been trained on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_convert.pairing.finding import Finding, Severity
from dflash_convert.pairing.view import DrafterView, TargetView
from dflash_convert.tables import EMBEDDINGS, HEAD
from dflash_convert.vocab.types import TokenType

if TYPE_CHECKING:
    from dflash_convert.pairing.weights import Rows

SAMPLE = 256  # rows that are read of either table
FEWEST = 16  # rows below which nothing is said
ALIKE = 0.9  # mean cosine of a copy: a Q2_K table still has 0.95 with its source, an untrained one 0.0
UNLIKE = 0.5
LENGTHS = (0.5, 2.0)  # of a copy's rows over the target's; Gemma's factor is at least 16


# family -> what is said of (embeddings, head) that are unlike the target's; None: they may well be its own
EXPECTED: dict[str, tuple[Severity | None, Severity | None]] = {
    "DFlash": ("error", "warning"),
    "DFlash2": ("error", "warning"),
    "DSpark": ("warning", None),
    "EAGLE-3": ("warning", None),
}
DROP = {
    EMBEDDINGS: "remove embed_tokens from the checkpoint (or set has_embed_tokens to false in its config.json) and "
    "convert again: llama.cpp then reads the target's",
    HEAD: "if the head was not trained on its own, remove lm_head from the checkpoint and convert again: llama.cpp "
    "then uses the target's; otherwise measure the pair with dflash-convert validate",
}


@dataclass(frozen=True)
class Likeness:
    """Over ``rows`` rows: mean cosine, the distance |a - b| / |b|, and the length of a's rows over b's."""

    rows: int
    cosine: float
    distance: float
    length: float

    @property
    def copy(self) -> bool:
        return self.cosine >= ALIKE and LENGTHS[0] <= self.length <= LENGTHS[1]

    def __str__(self) -> str:
        return (
            f"cosine {self.cosine:.2f}, distance {self.distance:.2f}, length x {self.length:.3g} over {self.rows} rows"
        )


def likeness(mine: Rows, its: Rows) -> Likeness | None:
    """Of two tables' rows, float32 [n, width]; rows that are zero in the target's say nothing."""
    lengths = np.linalg.norm(its, axis=1)
    kept = lengths > 0
    if int(kept.sum()) < FEWEST:
        return None
    a, b = mine[kept].astype(np.float64), its[kept].astype(np.float64)
    size_a, size_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    cosines = np.sum(a * b, axis=1) / (np.maximum(size_a, np.finfo(float).tiny) * size_b)
    distance = float(np.linalg.norm(a - b) / np.linalg.norm(b))
    return Likeness(len(a), float(cosines.mean()), distance, float(np.median(size_a / size_b)))


def check_copies(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Nothing without the target's weights, or for tables of another width (they cannot be copies)."""
    variant = drafter.variant
    if drafter.tables is None or target.tables is None or variant is None or variant.family not in EXPECTED:
        return
    embeddings, head = EXPECTED[variant.family]
    if drafter.keys.text("dflash_convert.head.source") not in (None, "own"):
        head = "error"  # rows that were copied from a target
    if embeddings is not None:
        own, its = _factor(drafter), target.embedding_scale or 1.0
        found = _compare(drafter, target, EMBEDDINGS, own / its)
        yield from _findings("own-embeddings", EMBEDDINGS, embeddings, found)
    if head is not None:
        yield from _findings("own-head", HEAD, head, _compare(drafter, target, HEAD, 1.0))


def _factor(drafter: DrafterView) -> float:
    """What the runtime multiplies the rows by that it looks up."""
    return drafter.keys.number(drafter.own("embedding_scale")) or 1.0


def _findings(name: str, tensor: str, severity: Severity, found: Likeness | None) -> Iterator[Finding]:
    if found is None or found.copy:
        return
    if found.cosine >= ALIKE:
        cure = (
            "the target's rows, but of another length: a factor (Gemma's) is in the table, or embedding_scale lacks it"
        )
        yield Finding(name, severity, str(found), "the target's own", cure)
    elif found.cosine >= UNLIKE:
        cure = "near the target's, but no copy of them: trained further, or of another version of the target"
        yield Finding(name, "warning", str(found), "the target's own", cure)
    else:
        yield Finding(name, severity, str(found), "the target's own", f"untrained, or of another model: {DROP[tensor]}")


def _compare(drafter: DrafterView, target: TargetView, name: str, scale: float) -> Likeness | None:
    if drafter.tables is None or target.tables is None:
        return None
    mine, its = drafter.tables.shape(name), target.tables.shape(name)
    if its is None and name == HEAD:  # the target's head is its embeddings
        its = target.tables.shape(EMBEDDINGS)
    if mine is None or its is None or len(mine) != 2 or mine[1] != its[1]:
        return None
    source = name if target.tables.shape(name) is not None else EMBEDDINGS
    reduced = drafter.d2t if name == HEAD else None
    ids = np.arange(mine[0]) if reduced is None else reduced
    if ids.size != mine[0]:
        return None
    rows = _sample(target, ids.tolist(), its[0])
    if len(rows) < FEWEST:
        return None
    own = drafter.tables.rows(name, rows) * np.float32(scale)
    return likeness(own, target.tables.rows(source, [int(ids[row]) for row in rows]))


def _sample(target: TargetView, ids: Sequence[int], rows: int) -> list[int]:
    """Evenly spread rows of ordinary tokens: padding is untrained, and the mask token's row is the drafter's own."""
    types = target.vocab.types
    count = target.vocab.used or rows
    fit = [
        row
        for row, token in enumerate(ids)
        if 0 <= token < min(rows, count)
        and (types is None or (token < len(types) and types[token] == TokenType.NORMAL))
    ]
    if len(fit) <= SAMPLE:
        return fit
    return [fit[i * len(fit) // SAMPLE] for i in range(SAMPLE)]

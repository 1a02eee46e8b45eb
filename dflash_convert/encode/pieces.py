"""Work on one tensor's rows: split, and as JSON for a worker process.

Every place is known before the work starts, so a worker reads its rows, encodes them for each output and
writes them where they belong; no tensor data crosses between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_convert.checkpoint import SourceTensor
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.transforms import granularity, row_count

PIECE_ELEMENTS = 1 << 23  # work of tens of milliseconds: long against a round trip, short against the whole


@dataclass(frozen=True)
class Place:
    """Where a tensor goes in one output: an open file, the tensor's offset in it, its type's name."""

    fd: int
    offset: int
    type: str


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of one tensor, for every output."""

    plan: TensorPlan
    start: int
    stop: int
    places: tuple[Place, ...]
    imatrix: str = ""

    @property
    def elements(self) -> int:
        return (self.stop - self.start) * self.plan.shape[-1]


def make_pieces(plan: TensorPlan, places: tuple[Place, ...], imatrix: Path | None = None) -> list[Piece]:
    """Split a tensor into pieces of about PIECE_ELEMENTS, at boundaries its transform allows."""
    rows, step = row_count(plan.shape), granularity(plan)
    per_piece = max(step, PIECE_ELEMENTS // plan.shape[-1] // step * step)
    weights = "" if imatrix is None else str(imatrix)
    spans = [(at, min(at + per_piece, rows)) for at in range(0, rows, per_piece)]
    return [Piece(_part(plan, *span), *span, places, weights) for span in spans]


def _part(plan: TensorPlan, start: int, stop: int) -> TensorPlan:
    """Of stacked matrices those that hold the rows: a piece names its own sources, not those of 256 experts."""
    if plan.transform != "stack":
        return plan
    rows = plan.shape[-2]
    first, last = start // rows, -(-stop // rows)
    return replace(plan, sources=plan.sources[2 * first : 2 * last], argument=first)


def piece_to_json(piece: Piece) -> dict[str, Any]:
    plan = piece.plan
    return {
        "name": plan.name,
        "shape": plan.shape,
        "transform": plan.transform,
        "argument": plan.argument,
        "scheme": plan.scheme,
        "type": plan.type,
        "block": plan.block,
        "sources": [[s.name, str(s.file), s.dtype, s.shape, s.offset, s.nbytes] for s in plan.sources],
        "rows": [piece.start, piece.stop],
        "imatrix": piece.imatrix,
        "places": [[p.fd, p.offset, p.type] for p in piece.places],
    }


def piece_from_json(data: dict[str, Any], fds: dict[int, int]) -> Piece:
    """``fds``: the sender's descriptor numbers to this process's own."""
    sources = tuple(
        SourceTensor(name, Path(file), dtype, tuple(shape), offset, nbytes)
        for name, file, dtype, shape, offset, nbytes in data["sources"]
    )
    plan = TensorPlan(
        data["name"],
        tuple(data["shape"]),
        sources,
        transform=data["transform"],
        argument=data["argument"],
        scheme=data["scheme"],
        block=tuple(data["block"]),
        type=data["type"],
    )
    start, stop = data["rows"]
    places = tuple(Place(fds[fd], offset, kind) for fd, offset, kind in data["places"])
    return Piece(plan, start, stop, places, data["imatrix"])

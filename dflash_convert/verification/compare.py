"""A file's tensors against what their plans say, piece by piece, in this process or shared among workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from dflash_convert.checkpoint import Reader
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.pieces import Piece, piece_to_json
from dflash_convert.encode.transforms import BLOCK_TYPES, NUMPY_DTYPE, RowSource, granularity
from dflash_convert.processes import Json, Workers
from dflash_convert.verification.figures import (
    Bytes,
    Figures,
    Meter,
    as_float,
    chunks,
    dequantizer,
    read_rows,
    same_bits,
    slack_of,
)
from quant import nonfinite_row

LOSSLESS = {"BF16": ("BF16", "F32"), "F16": ("F16", "F32"), "F32": ("F32",), "F64": ("F32",)}
INTEGERS = ("I64", "I32", "I16", "I8")
_E8M0_OVERFLOW = 253  # from this exponent on the largest MXFP4 value is no float32


@dataclass(frozen=True)
class Outcome:
    """Of one piece or tensor: whether all values are equal bit for bit, and how far they are apart.

    ``decoded`` is false where the bytes were equal: then nothing was decoded and ``figures`` only count.
    """

    equal: bool
    decoded: bool
    figures: Figures

    def json(self) -> Json:
        return {"equal": self.equal, "decoded": self.decoded, "figures": astuple(self.figures)}


def outcome_from_json(data: Json) -> Outcome:
    return Outcome(data["equal"], data["decoded"], Figures(*data["figures"]))


def source_type(plan: TensorPlan) -> str:
    """The number format of a plan's source."""
    return (plan.scheme or plan.sources[0].dtype) if plan.sources else "derived"


def is_lossless(plan: TensorPlan, kind: str) -> bool:
    """Whether the type ``kind`` holds the plan's values as they are."""
    if _blocks(plan) is not None:
        return source_type(plan) == kind
    return plan.transform == "stack" or kind in LOSSLESS.get(source_type(plan), ("F32",))


def _blocks(plan: TensorPlan) -> TensorType | None:
    """The quantized type of a source that is a GGUF's tensor, whose rows come as they are stored."""
    return TensorType[source_type(plan)] if source_type(plan) in BLOCK_TYPES else None


def compare(pieces: Sequence[Piece], progress: Callable[[int], None], workers: Workers | None = None) -> list[Outcome]:
    """Every piece's outcome; the tensor in the file is each piece's one place. ``workers`` end with the work.

    Where a part of a tensor has other bytes than its source, all of the tensor is decoded.
    """
    found: dict[int, Outcome] = {}
    here = [i for i, piece in enumerate(pieces) if workers is None or piece.plan.constant is not None]
    with Comparer() as comparer:
        for i in here:
            found[i] = comparer.run(pieces[i])
            progress(pieces[i].elements)
        if workers is not None:
            rest = [i for i in range(len(pieces)) if i not in found]

            def done(index: int, reply: Json) -> None:
                found[rest[index]] = outcome_from_json(reply)
                progress(pieces[rest[index]].elements)

            fds = {place.fd for piece in pieces for place in piece.places}
            workers.exchange((piece_to_json(pieces[i]) for i in rest), fds, done, ahead=1)
        torn = {piece.plan.name for i, piece in enumerate(pieces) if not found[i].equal}
        for i, piece in enumerate(pieces):
            if piece.plan.name in torn and not found[i].decoded:
                found[i] = comparer.run(piece, decode=True)
    return [found[i] for i in range(len(pieces))]


def merged(outcomes: Iterable[Outcome]) -> Outcome:
    """One tensor's outcome from those of its pieces, in their order."""
    figures, equal, decoded = Figures(), True, False
    for one in outcomes:
        figures.merge(one.figures)
        equal, decoded = equal and one.equal, decoded or one.decoded
    return Outcome(equal, decoded, figures)


class Comparer:
    """Runs pieces with buffers that live as long as it does."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._source = RowSource(self._reader)
        self._meter = Meter()

    def __enter__(self) -> Comparer:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def run(self, piece: Piece, *, decode: bool = False) -> Outcome:
        """The outcome of one piece; ``decode`` asks for figures also where the bytes are equal."""
        kind = piece.places[0].type
        if kind in INTEGERS:
            return Outcome(all(self._same_integers(piece, *span) for span in _spans(piece)), True, Figures())
        if (
            not decode
            and is_lossless(piece.plan, kind)
            and all(self._same_bytes(piece, *span) for span in _spans(piece))
        ):
            return Outcome(True, False, Figures(count=piece.elements))
        return self._decoded(piece)

    def _same_integers(self, piece: Piece, start: int, stop: int) -> bool:
        size = int(piece.places[0].type[1:]) // 8
        found = _file_rows(piece, start, stop).view(f"<i{size}")
        return bool(np.array_equal(found, self._source.rows(piece.plan, start, stop).reshape(found.shape)))

    def _same_bytes(self, piece: Piece, start: int, stop: int) -> bool:
        """Whether the rows are the source's, bit for bit, and surely finite."""
        rows, found = self._source.rows(piece.plan, start, stop), _file_rows(piece, start, stop)
        if piece.plan.transform == "stack":
            return same_bits(rows, found) and int(found.reshape(-1, 17)[:, 0].max()) < _E8M0_OVERFLOW
        if _blocks(piece.plan) is not None:
            return same_bits(rows, found)
        if rows.dtype != NUMPY_DTYPE.get(piece.places[0].type):
            rows = as_float(rows)
        return same_bits(rows, found) and nonfinite_row(found.view(rows.dtype)) is None

    def _decoded(self, piece: Piece) -> Outcome:
        kind = TensorType[piece.places[0].type]
        decode, _ = dequantizer(kind)
        columns = piece.plan.shape[-1]
        block = BLOCK[kind][0] if BLOCK[kind][0] > 1 else min(columns, 256)
        figures, equal = Figures(), True
        for start, stop in _spans(piece):
            rows = self._source.rows(piece.plan, start, stop)
            stored = _blocks(piece.plan)
            if stored is not None:
                expected = dequantizer(stored)[0](rows)
            else:
                expected = decode(rows) if piece.plan.transform == "stack" else as_float(rows)
            expected = np.ascontiguousarray(expected.reshape(stop - start, columns))
            found = np.ascontiguousarray(decode(_file_rows(piece, start, stop)).reshape(expected.shape))
            equal = equal and same_bits(expected, found)
            self._meter.add(figures, expected, found, block, slack_of(kind))
        return Outcome(equal, True, figures)


def _spans(piece: Piece) -> Iterator[tuple[int, int]]:
    return chunks(piece.start, piece.stop, piece.plan.shape[-1], granularity(piece.plan))


def _file_rows(piece: Piece, start: int, stop: int) -> Bytes:
    """uint8 [stop - start, bytes per row] of the file's tensor."""
    place = piece.places[0]
    block, nbytes = BLOCK[TensorType[place.type]]
    width = piece.plan.shape[-1] // block * nbytes
    return read_rows(place.fd, place.offset + start * width, (stop - start, width), piece.plan.name)

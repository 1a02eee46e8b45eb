"""Encode the rows of a piece and write them where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import quant
from dflash_convert import errors
from dflash_convert.checkpoint import Reader
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.imatrix import Imatrix, open_imatrix
from dflash_convert.encode.pieces import Piece, piece_from_json
from dflash_convert.encode.transforms import NUMPY_DTYPE, RowSource, granularity
from dflash_convert.errors import OutputError
from dflash_convert.output import TIPS
from dflash_convert.processes import Json
from dflash_convert.system import start_writeback, write_all

CHUNK = 1 << 18


class Encoders:
    """Runs pieces with buffers and encoders that live as long as it does."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._source = RowSource(self._reader)
        self._encoders: dict[str, Any] = {}
        self._imatrices: dict[str, Imatrix] = {}  # by path, no longer than one run: the next may find another file
        self._out: Any = None

    def __enter__(self) -> Encoders:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def work(self, task: Json, fds: dict[int, int]) -> Json:
        """:meth:`run` for a piece that comes as JSON, with the sender's descriptors and this process's own."""
        self.run(piece_from_json(task, fds))
        return {}

    def run(self, piece: Piece) -> None:
        step = granularity(piece.plan)
        chunk = max(step, self._rows_per_call(piece) // step * step)
        for start in range(piece.start, piece.stop, chunk):
            stop = min(start + chunk, piece.stop)
            rows = self._source.rows(piece.plan, start, stop)
            for place in piece.places:
                data, nbytes = self._encode(piece, rows, place.type, start)
                write(place.fd, data, place.offset + start * nbytes)
                if stop == piece.stop:
                    start_writeback(place.fd, place.offset + piece.start * nbytes, (stop - piece.start) * nbytes)

    def _rows_per_call(self, piece: Piece) -> int:
        """Rows that fill the largest workspace among the outputs' encoders once."""
        columns = piece.plan.shape[-1]
        kinds = [place.type for place in piece.places if place.type in quant.TYPES]
        return max((self._encoder(piece, kind, columns).rows_per_call for kind in kinds), default=CHUNK // columns)

    def _encode(self, piece: Piece, rows: Any, type_name: str, start: int) -> tuple[Any, int]:
        """(encoded rows, bytes per row); the array is valid until the next call."""
        plan = piece.plan
        stored = "MXFP4" if plan.transform == "stack" else plan.sources[0].dtype if plan.sources else ""
        if type_name == "I64" or (stored == type_name and rows.dtype == np.uint8):
            return rows, rows.shape[1] * rows.itemsize
        if rows.dtype == NUMPY_DTYPE.get(type_name):  # the values do not change: what was read is written
            row = quant.nonfinite_row(rows)
            if row is not None:
                raise _named(plan, start, quant.NonFiniteError("", row=row))
            return np.ascontiguousarray(rows), rows.shape[1] * rows.itemsize
        if rows.dtype == np.uint8:
            rows = quant.dequantize(rows, stored, threads=1)
        encoder = self._encoder(piece, type_name, rows.shape[1])
        need = rows.shape[0] * encoder.row_nbytes
        if self._out is None or self._out.size < need:
            self._out = np.empty(need, dtype=np.uint8)
        out = self._out[:need].reshape(rows.shape[0], encoder.row_nbytes)
        try:
            encoder.encode(np.ascontiguousarray(rows), out)
        except quant.QuantError as error:
            raise _named(plan, start, error) from None
        return out, encoder.row_nbytes

    def _encoder(self, piece: Piece, type_name: str, columns: int) -> Any:
        """The type's encoder, made anew when the rows' length or the importance weights change."""
        weighted = bool(piece.imatrix) and quant.TYPES[type_name].imatrix
        key = (columns, piece.plan.name if weighted else "")
        kept = self._encoders.get(type_name)
        if kept is None or kept[0] != key:
            weights = None
            if weighted:
                if piece.imatrix not in self._imatrices:
                    self._imatrices[piece.imatrix] = open_imatrix(Path(piece.imatrix))
                weights = self._imatrices[piece.imatrix].weights(piece.plan.name, columns)
            kept = self._encoders[type_name] = (key, quant.Encoder(type_name, columns, imatrix=weights))
        return kept[1]


def _named(plan: TensorPlan, start: int, error: Any) -> errors.CheckpointError:
    source = plan.sources[0] if plan.sources else None
    where = f"{source.file}: tensor {source.name!r}" if source else f"tensor {plan.name!r}"
    row = "" if error.row is None else f", row {start + error.row}"
    reason = {"NonFiniteError": "holds NaN or Inf", "ScaleOverflowError": "is too large for the output type"}
    text = reason.get(type(error).__name__, str(error))
    return errors.CheckpointError(f"{where}{row} {text}", tip="the checkpoint is damaged or was trained to overflow")


def write(fd: int, data: Any, offset: int) -> None:
    try:
        write_all(fd, data, offset)
    except OSError as error:
        raise OutputError(f"writing failed: {error.strerror}", tip=TIPS.get(error.errno or 0)) from error

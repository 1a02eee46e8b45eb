"""Encode planned tensors into their places, here or as a worker process of :mod:`dflash_convert.workers`.

Every place is known before the work starts, so a worker reads its rows, encodes them for each output and
writes them where they belong; no tensor data crosses between processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_convert import errors
from dflash_convert.checkpoint import Reader, SourceTensor
from dflash_convert.errors import DflashError, OutputError
from dflash_convert.families.common import TensorPlan

JOB_ELEMENTS = 1 << 23  # work of tens of milliseconds: long against a round trip, short against the whole
CHUNK = 1 << 18
MAX_FDS = 250  # that one message can carry


@dataclass(frozen=True)
class Place:
    """Where a tensor goes in one output: an open file, the tensor's offset in it, its type's name."""

    fd: int
    offset: int
    type: str


@dataclass(frozen=True)
class Job:
    """Rows ``start`` to ``stop`` of one tensor, for every output."""

    plan: TensorPlan
    start: int
    stop: int
    places: tuple[Place, ...]
    imatrix: str = ""

    @property
    def elements(self) -> int:
        return (self.stop - self.start) * self.plan.shape[-1]


def make_jobs(plan: TensorPlan, places: tuple[Place, ...], imatrix: Path | None = None) -> list[Job]:
    """Split a tensor into jobs of about JOB_ELEMENTS, at boundaries its transform allows."""
    from dflash_convert.transforms import granularity, row_count

    rows, step = row_count(plan.shape), granularity(plan)
    per_job = max(step, JOB_ELEMENTS // plan.shape[-1] // step * step)
    weights = "" if imatrix is None else str(imatrix)
    spans = [(at, min(at + per_job, rows)) for at in range(0, rows, per_job)]
    return [Job(_part(plan, *span), *span, places, weights) for span in spans]


def _part(plan: TensorPlan, start: int, stop: int) -> TensorPlan:
    """Of stacked matrices those that hold the rows: a job names its own sources, not those of 256 experts."""
    if plan.transform != "stack":
        return plan
    rows = plan.shape[-2]
    first, last = start // rows, -(-stop // rows)
    return replace(plan, sources=plan.sources[2 * first : 2 * last], argument=first)


class Encoders:
    """Runs jobs with buffers and encoders that live as long as it does."""

    def __init__(self) -> None:
        from dflash_convert.transforms import RowSource

        self._reader = Reader()
        self._source = RowSource(self._reader)
        self._encoders: dict[str, Any] = {}
        self._out: Any = None

    def close(self) -> None:
        self._reader.__exit__()

    def run(self, job: Job) -> None:
        from dflash_convert.transforms import granularity

        step = granularity(job.plan)
        chunk = max(step, self._rows_per_call(job) // step * step)
        for start in range(job.start, job.stop, chunk):
            stop = min(start + chunk, job.stop)
            rows = self._source.rows(job.plan, start, stop)
            for place in job.places:
                data, nbytes = self._encode(job, rows, place.type, start)
                write(place.fd, data, place.offset + start * nbytes)
                if stop == job.stop:
                    start_writeback(place.fd, place.offset + job.start * nbytes, (stop - job.start) * nbytes)

    def _rows_per_call(self, job: Job) -> int:
        """Rows that fill the largest workspace among the outputs' encoders once."""
        import quant

        columns = job.plan.shape[-1]
        kinds = [place.type for place in job.places if place.type in quant.TYPES]
        return max((self._encoder(job, kind, columns).rows_per_call for kind in kinds), default=CHUNK // columns)

    def _encode(self, job: Job, rows: Any, type_name: str, start: int) -> tuple[Any, int]:
        """(encoded rows, bytes per row); the array is valid until the next call."""
        import numpy as np

        import quant

        plan = job.plan
        stored = "MXFP4" if plan.transform == "stack" else plan.sources[0].dtype if plan.sources else ""
        if type_name == "I64" or (stored == type_name and rows.dtype == np.uint8):
            return rows, rows.shape[1] * rows.itemsize
        if rows.dtype == np.uint8:
            rows = quant.dequantize(rows, stored, threads=1)
        encoder = self._encoder(job, type_name, rows.shape[1])
        need = rows.shape[0] * encoder.row_nbytes
        if self._out is None or self._out.size < need:
            self._out = np.empty(need, dtype=np.uint8)
        out = self._out[:need].reshape(rows.shape[0], encoder.row_nbytes)
        try:
            encoder.encode(np.ascontiguousarray(rows), out)
        except quant.QuantError as error:
            raise _named(plan, start, error) from None
        return out, encoder.row_nbytes

    def _encoder(self, job: Job, type_name: str, columns: int) -> Any:
        """The type's encoder, made anew when the rows' length or the importance weights change."""
        import quant

        weighted = bool(job.imatrix) and quant.TYPES[type_name].imatrix
        key = (columns, job.plan.name if weighted else "")
        kept = self._encoders.get(type_name)
        if kept is None or kept[0] != key:
            weights = None
            if weighted:
                from dflash_convert.imatrix import open_imatrix

                weights = open_imatrix(Path(job.imatrix)).weights(job.plan.name, columns)
            kept = self._encoders[type_name] = (key, quant.Encoder(type_name, columns, imatrix=weights))
        return kept[1]


def _named(plan: TensorPlan, start: int, error: Any) -> errors.CheckpointError:
    source = plan.sources[0] if plan.sources else None
    where = f"{source.file.name}: tensor {source.name!r}" if source else f"tensor {plan.name!r}"
    row = "" if error.row is None else f", row {start + error.row}"
    reason = {"NonFiniteError": "holds NaN or Inf", "ScaleOverflowError": "is too large for the output type"}
    text = reason.get(type(error).__name__, str(error))
    return errors.CheckpointError(f"{where}{row} {text}", tip="the checkpoint is damaged or was trained to overflow")


def write(fd: int, data: Any, offset: int) -> None:
    from dflash_convert.container.writer import TIPS, pwrite_all

    try:
        pwrite_all(fd, data, offset)
    except OSError as error:
        raise OutputError(f"writing failed: {error.strerror}", tip=TIPS.get(error.errno or 0)) from error


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Let the disk begin now: the sync at the end, which no worker shares, then waits for little."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # advice; a failed write is told by fsync
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def job_to_json(job: Job) -> dict[str, Any]:
    plan = job.plan
    return {
        "name": plan.name,
        "shape": plan.shape,
        "transform": plan.transform,
        "argument": plan.argument,
        "scheme": plan.scheme,
        "block": plan.block,
        "sources": [[s.name, str(s.file), s.dtype, s.shape, s.offset, s.nbytes] for s in plan.sources],
        "rows": [job.start, job.stop],
        "imatrix": job.imatrix,
        "places": [[p.fd, p.offset, p.type] for p in job.places],
    }


def job_from_json(data: dict[str, Any], fds: dict[int, int]) -> Job:
    """``fds``: the sender's descriptor numbers to this process's own."""
    sources = tuple(
        SourceTensor(name, Path(file), dtype, tuple(shape), offset, nbytes)
        for name, file, dtype, shape, offset, nbytes in data["sources"]
    )
    plan = TensorPlan(
        data["name"],
        tuple(data["shape"]),
        sources,
        data["transform"],
        data["argument"],
        scheme=data["scheme"],
        block=tuple(data["block"]),
    )
    start, stop = data["rows"]
    places = tuple(Place(fds[fd], offset, kind) for fd, offset, kind in data["places"])
    return Job(plan, start, stop, places, data["imatrix"])


def work(link: socket.socket) -> None:
    """A worker's life: the outputs, then one JSON job a line, one JSON reply a line, until the parent is gone."""
    message, received, _, _ = socket.recv_fds(link, 1 << 16, MAX_FDS)
    if not message:
        return
    fds = dict(zip(json.loads(message), received, strict=True))
    encoders = Encoders()
    try:
        link.sendall(b"{}\n")
        for line in link.makefile(encoding="utf-8"):
            reply: dict[str, Any] = {}
            try:
                encoders.run(job_from_json(json.loads(line), fds))
            except DflashError as error:
                reply = {"error": type(error).__name__, "message": str(error), "tip": error.tip}
            link.sendall((json.dumps(reply) + "\n").encode())
    except OSError:  # the parent was killed: there is nobody to tell
        return


def main() -> None:
    import quant  # noqa: F401  ahead of the first job, while the parent still reads

    work(socket.socket(fileno=0))


if __name__ == "__main__":
    main()

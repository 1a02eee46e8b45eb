"""A file's tensors against what their plans say, job by job, in this process or in workers that share the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from dflash_convert.checkpoint import Reader
from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.jobs import Job, job_to_json
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
    """Of one job or tensor: whether all values are equal bit for bit, and how far they are apart.

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


def compare(jobs: Sequence[Job], progress: Callable[[int], None], workers: Workers | None = None) -> list[Outcome]:
    """Every job's outcome; the tensor in the file is each job's one place. ``workers`` end with the work.

    Where a part of a tensor has other bytes than its source, all of the tensor is decoded.
    """
    found: dict[int, Outcome] = {}
    here = [i for i, job in enumerate(jobs) if workers is None or job.plan.constant is not None]
    with Comparer() as comparer:
        for i in here:
            found[i] = comparer.run(jobs[i])
            progress(jobs[i].elements)
        if workers is not None:
            rest = [i for i in range(len(jobs)) if i not in found]

            def done(index: int, reply: Json) -> None:
                found[rest[index]] = outcome_from_json(reply)
                progress(jobs[rest[index]].elements)

            fds = {place.fd for job in jobs for place in job.places}
            workers.exchange((job_to_json(jobs[i]) for i in rest), fds, done, ahead=1)
        torn = {job.plan.name for i, job in enumerate(jobs) if not found[i].equal}
        for i, job in enumerate(jobs):
            if job.plan.name in torn and not found[i].decoded:
                found[i] = comparer.run(job, decode=True)
    return [found[i] for i in range(len(jobs))]


def merged(outcomes: Iterable[Outcome]) -> Outcome:
    """One tensor's outcome from those of its jobs, in their order."""
    figures, equal, decoded = Figures(), True, False
    for one in outcomes:
        figures.merge(one.figures)
        equal, decoded = equal and one.equal, decoded or one.decoded
    return Outcome(equal, decoded, figures)


class Comparer:
    """Runs jobs with buffers that live as long as it does."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._source = RowSource(self._reader)
        self._meter = Meter()

    def __enter__(self) -> Comparer:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def run(self, job: Job, *, decode: bool = False) -> Outcome:
        """The outcome of one job; ``decode`` asks for figures also where the bytes are equal."""
        kind = job.places[0].type
        if kind in INTEGERS:
            return Outcome(all(self._same_integers(job, *span) for span in _spans(job)), True, Figures())
        if not decode and is_lossless(job.plan, kind) and all(self._same_bytes(job, *span) for span in _spans(job)):
            return Outcome(True, False, Figures(count=job.elements))
        return self._decoded(job)

    def _same_integers(self, job: Job, start: int, stop: int) -> bool:
        size = int(job.places[0].type[1:]) // 8
        found = _file_rows(job, start, stop).view(f"<i{size}")
        return bool(np.array_equal(found, self._source.rows(job.plan, start, stop).reshape(found.shape)))

    def _same_bytes(self, job: Job, start: int, stop: int) -> bool:
        """Whether the rows are the source's, bit for bit, and surely finite."""
        rows, found = self._source.rows(job.plan, start, stop), _file_rows(job, start, stop)
        if job.plan.transform == "stack":
            return same_bits(rows, found) and int(found.reshape(-1, 17)[:, 0].max()) < _E8M0_OVERFLOW
        if _blocks(job.plan) is not None:
            return same_bits(rows, found)
        if rows.dtype != NUMPY_DTYPE.get(job.places[0].type):
            rows = as_float(rows)
        return same_bits(rows, found) and nonfinite_row(found.view(rows.dtype)) is None

    def _decoded(self, job: Job) -> Outcome:
        kind = TensorType[job.places[0].type]
        decode, _ = dequantizer(kind)
        columns = job.plan.shape[-1]
        block = BLOCK[kind][0] if BLOCK[kind][0] > 1 else min(columns, 256)
        figures, equal = Figures(), True
        for start, stop in _spans(job):
            rows = self._source.rows(job.plan, start, stop)
            stored = _blocks(job.plan)
            if stored is not None:
                expected = dequantizer(stored)[0](rows)
            else:
                expected = decode(rows) if job.plan.transform == "stack" else as_float(rows)
            expected = np.ascontiguousarray(expected.reshape(stop - start, columns))
            found = np.ascontiguousarray(decode(_file_rows(job, start, stop)).reshape(expected.shape))
            equal = equal and same_bits(expected, found)
            self._meter.add(figures, expected, found, block, slack_of(kind))
        return Outcome(equal, True, figures)


def _spans(job: Job) -> Iterator[tuple[int, int]]:
    return chunks(job.start, job.stop, job.plan.shape[-1], granularity(job.plan))


def _file_rows(job: Job, start: int, stop: int) -> Bytes:
    """uint8 [stop - start, bytes per row] of the file's tensor."""
    place = job.places[0]
    block, nbytes = BLOCK[TensorType[place.type]]
    width = job.plan.shape[-1] // block * nbytes
    return read_rows(place.fd, place.offset + start * width, (stop - start, width), job.plan.name)

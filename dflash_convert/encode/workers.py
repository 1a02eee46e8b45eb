"""Run encoding jobs: in this process when small, else in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dflash_convert import arrivals
from dflash_convert.encode.jobs import Job, job_to_json
from dflash_convert.encode.rows import Encoders
from dflash_convert.processes import Json, Workers, can_share
from dflash_convert.system import writes_in_parallel

SMALL = 1 << 25  # elements below which starting workers costs more than it saves

Progress = Callable[[int], None]


def pool_size(threads: int | None, elements: int) -> int:
    """How many workers to use; 0: none, work in this process. ``threads`` None leaves the choice to us.

    Workers need files that several processes may write, and sockets that hand files over: Windows has neither.
    """
    if not writes_in_parallel() or not can_share():
        return 0
    cores = os.cpu_count() or 1
    count = min(threads or cores, max(2, cores))
    return 0 if count <= 1 or (threads is None and elements < SMALL) else count


def run_jobs(jobs: Sequence[Job], threads: int | None, progress: Progress, pool: Pool | None = None) -> None:
    """Run all jobs, those first whose sources are here; ``progress`` receives the elements done.

    The first error stops everything.

    ``pool``: workers that were started earlier, who end with the work; without one they are started as needed.
    """
    count = min(pool_size(threads, sum(job.elements for job in jobs)), len(jobs))
    if count <= 1:
        _run_here(jobs, progress)
        return
    shared = [job for job in jobs if job.plan.constant is None]
    if pool:
        pool.run(shared, progress)
    else:
        with Pool(count) as own:
            own.run(shared, progress)
    _run_here([job for job in jobs if job.plan.constant is not None], progress)


def _files(job: Job) -> list[Path]:
    return [source.file for source in job.plan.sources]


def _run_here(jobs: Sequence[Job], progress: Progress) -> None:
    encoders = Encoders()
    try:
        for job in arrivals.in_order(jobs, _files):
            encoders.run(job)
            progress(job.elements)
    finally:
        encoders.close()


class Pool(Workers):
    """``count`` encoding processes for one :meth:`run`; use as a context manager, which ends them."""

    def __init__(self, count: int) -> None:
        super().__init__("encode.worker", count)

    def __enter__(self) -> Pool:
        return self

    def run(self, jobs: Sequence[Job], progress: Progress) -> None:
        """Run all jobs and end the workers, who know one set of outputs; ValueError for a second call."""
        fds = {place.fd for job in jobs for place in job.places}
        given: list[int] = []  # elements of the jobs in the order in which they were handed out

        def tasks() -> Iterator[Json]:
            for job in arrivals.in_order(jobs, _files):
                given.append(job.elements)
                yield job_to_json(job)

        self.exchange(tasks(), fds, lambda index, _: progress(given[index]))

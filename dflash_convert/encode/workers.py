"""Run encoding jobs: in this process when small, else in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dflash_convert import arrivals
from dflash_convert.encode.jobs import Job, job_to_json
from dflash_convert.encode.pool import Pool, pool_size
from dflash_convert.encode.rows import Encoders
from dflash_convert.processes import Json

Progress = Callable[[int], None]


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
        _share(shared, progress, pool)
    else:
        with Pool(count) as own:
            _share(shared, progress, own)
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


def _share(jobs: Sequence[Job], progress: Progress, pool: Pool) -> None:
    """Run all jobs in the pool and end it; ValueError when it has run before."""
    fds = {place.fd for job in jobs for place in job.places}
    given: list[int] = []  # elements of the jobs in the order in which they were handed out

    def tasks() -> Iterator[Json]:
        for job in arrivals.in_order(jobs, _files):
            given.append(job.elements)
            yield job_to_json(job)

    pool.exchange(tasks(), fds, lambda index, _: progress(given[index]))

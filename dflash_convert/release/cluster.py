"""The jobs of a batch on a Dask cluster, whose workers see the same file system.

Each job is the same command as on one machine. When a worker dies the scheduler gives its job to another one;
jobs are idempotent and their files appear whole, so the retry ends in the same bytes.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dflash_convert.errors import EngineError, UsageError
from dflash_convert.installed import install_command
from dflash_convert.release.batch import job_command, parse_outcome
from dflash_convert.release.job import Outcome, child_environment
from dflash_convert.release.plan import Job, Release

RETRIES = 2  # of a job that raised; a job whose worker died is retried by the scheduler in any case


class ClusterRunner:
    """Jobs on the cluster at ``address`` (``tcp://host:port``)."""

    def __init__(self, release: Release, address: str, *, force: bool, timeout: float = 30.0) -> None:
        self._release, self._address, self._force, self._timeout = release, address, force, timeout

    def __call__(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError:
            tip = f"{install_command('cluster')}, here and on the workers"
            raise UsageError("--scheduler needs the distributed package", tip=tip) from None
        try:
            client = distributed.Client(self._address, timeout=self._timeout)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"no Dask scheduler answers at {self._address} ({type(error).__name__})",
                tip="start one with: dask scheduler",
            ) from None
        with client:
            tasks = {}
            for job in jobs:
                arguments = (str(self._release.path), job.name, self._force)
                tasks[client.submit(run_remote, *arguments, pure=False, retries=RETRIES)] = job
            try:
                for future in distributed.as_completed(list(tasks)):
                    yield _result(tasks[future], future)
            except BaseException:
                client.cancel(list(tasks), force=True)
                raise


def _result(job: Job, future: Any) -> Outcome:
    error = future.exception()
    if error is None:
        return parse_outcome(job.name, *future.result())
    return Outcome(job.name, "failed", 1, "cluster", f"{type(error).__name__}: {str(error).splitlines()[0]}")


def run_remote(release: str, name: str, force: bool) -> tuple[int, str, str]:
    """On a worker: run one job; its exit code, stdout and stderr."""
    if not Path(release).is_file():
        return 2, "", f"ERROR {release} is not visible on this worker: the cluster needs a shared file system"
    done = subprocess.run(
        job_command(Path(release), name, force=force),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=child_environment(),
    )
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

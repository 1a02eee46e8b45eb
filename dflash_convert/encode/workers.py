"""Run encoding jobs: in this process when small, else in worker processes.

Starting an interpreter with numpy takes a tenth of a second, so a pool may be made before there is work: that
time then passes while the tokenizer is read. A worker sits at the other end of a socket, over which it receives
the outputs' descriptors and then its jobs.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import IO, Any

from dflash_convert import child, errors
from dflash_convert.encode.jobs import Job, job_to_json
from dflash_convert.encode.rows import Encoders
from dflash_convert.errors import DflashError
from dflash_convert.system import writes_in_parallel

SMALL = 1 << 25  # elements below which starting workers costs more than it saves

Progress = Callable[[int], None]


def pool_size(threads: int | None, elements: int) -> int:
    """How many workers to use; 0: none, work in this process. ``threads`` None leaves the choice to us.

    Workers need files that several processes may write, and sockets that hand files over: Windows has neither.
    """
    if not writes_in_parallel() or not hasattr(socket, "send_fds"):
        return 0
    cores = os.cpu_count() or 1
    count = min(threads or cores, max(2, cores))
    return 0 if count <= 1 or (threads is None and elements < SMALL) else count


def run_jobs(jobs: Sequence[Job], threads: int | None, progress: Progress, pool: Pool | None = None) -> None:
    """Run all jobs; ``progress`` receives the elements done. The first error stops everything.

    ``pool``: workers that were started earlier, who end with the work; without one they are started as needed.
    """
    count = min(pool_size(threads, sum(job.elements for job in jobs)), len(jobs))
    if count <= 1:
        _run_here(jobs, progress)
        return
    _run_here([job for job in jobs if job.plan.constant is not None], progress)
    shared = [job for job in jobs if job.plan.constant is None]
    if pool:
        pool.run(shared, progress)
    else:
        with Pool(count) as own:
            own.run(shared, progress)


def _run_here(jobs: Iterable[Job], progress: Progress) -> None:
    encoders = Encoders()
    try:
        for job in jobs:
            encoders.run(job)
            progress(job.elements)
    finally:
        encoders.close()


class Pool:
    """``count`` worker processes for one :meth:`run`; use as a context manager, which ends them."""

    def __init__(self, count: int) -> None:
        self._workers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        try:
            for _ in range(count):
                self._workers.append(_start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.wait()
        for _, link in self._workers:
            link.close()
        self._workers = []

    def run(self, jobs: Iterable[Job], progress: Progress) -> None:
        """Run all jobs and end the workers, who know one set of outputs; ValueError for a second call."""
        if not self._workers:
            raise ValueError("this pool has no workers (left): it runs once")
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        fds: set[int] = set()
        for job in jobs:
            waiting.put(job)
            fds.update(place.fd for place in job.places)
        done: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
        threads = []
        try:
            for process, link in self._workers:
                thread = threading.Thread(target=_feed, args=(process, link, sorted(fds), waiting, done), daemon=True)
                thread.start()
                threads.append(thread)
            running = len(threads)
            while running:
                event = done.get()
                if event is None:
                    running -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    progress(event)
            if not waiting.empty():
                raise DflashError("the workers ended with work left")
        finally:
            self.close()  # a thread that waits for a reply then gets none
            for thread in threads:
                thread.join()


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            child.command("encode.worker"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C reaches this program alone, which then kills its workers
        )
    return process, ours


def _feed(
    process: subprocess.Popen[bytes],
    link: socket.socket,
    fds: list[int],
    waiting: queue.SimpleQueue[Job],
    done: queue.SimpleQueue[int | BaseException | None],
) -> None:
    """Give one worker a job at a time until none is left."""
    try:
        with link.makefile("r", encoding="utf-8") as replies:
            socket.send_fds(link, [json.dumps(fds).encode()], fds)
            _reply(process, replies)
            while True:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    break
                link.sendall((json.dumps(job_to_json(job)) + "\n").encode())
                reply = _reply(process, replies)
                if "error" in reply:
                    done.put(getattr(errors, reply["error"], DflashError)(reply["message"], tip=reply["tip"]))
                    break
                done.put(job.elements)
    except (BrokenPipeError, ConnectionResetError):
        done.put(DflashError(f"a worker process ended unexpectedly (exit status {process.wait()})"))
    except (OSError, ValueError) as error:
        done.put(DflashError(f"a worker process ended unexpectedly ({error})"))
    done.put(None)


def _reply(process: subprocess.Popen[bytes], replies: IO[str]) -> dict[str, Any]:
    line = replies.readline()
    if not line:
        raise ValueError(f"exit status {process.wait()}")
    reply: dict[str, Any] = json.loads(line)
    return reply

"""Worker processes that take tasks as JSON lines: work is shared, no tensor data crosses between processes.

A worker sits at the other end of a socket, over which it receives open files' descriptors and then its tasks.
Starting an interpreter with numpy takes a tenth of a second, so workers may be started before there is work.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import IO, Any

from dflash_convert import child, errors
from dflash_convert.errors import DflashError
from dflash_convert.gguf_library import nobody_else_imports
from dflash_convert.system import KILLED, receive_files, send_files

Json = dict[str, Any]
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    # glibc keeps what arrays of some megabytes leave behind: else every one of them is a thousand page faults
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
Event = tuple[int, Json] | BaseException | None
LEAST_MEMORY = "--threads 1 needs the least"


class Workers:
    """``count`` processes that run ``main`` of ``module``, for one :meth:`exchange`; a context manager ends them."""

    def __init__(self, module: str, count: int) -> None:
        self._workers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        try:
            for _ in range(count):
                self._workers.append(_start(module))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process, _ in self._workers:
            process.kill()
            process.wait()
        for _, link in self._workers:
            link.close()
        self._workers = []

    def exchange(
        self,
        tasks: Iterable[Json],
        fds: Iterable[int],
        done: Callable[[int, Json], None],
        ahead: int = 0,
        here: Callable[[Json], Json] | None = None,
    ) -> None:
        """Have all tasks done, then end the workers, who know one set of files; ValueError for a second call.

        ``tasks`` are taken from a thread of their own and may come slowly; an error of theirs is raised here.
        ``done`` receives a task's index and its reply, in the order in which they come; a worker's error is raised
        here and stops everything. Each worker has up to ``ahead`` more tasks waiting at its end, so that it need not
        wait for a process that computes at the same time.  ``here`` does its share of them in a thread of this process.
        """
        workers = list(self._workers)  # another thread may close them at any time
        if not workers:
            raise ValueError("these workers have ended: a pool runs once")
        waiting: queue.SimpleQueue[tuple[int, Json] | None] = queue.SimpleQueue()
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        stopped = threading.Event()
        files = sorted(fds)
        threads = [
            threading.Thread(target=_feed, args=(*worker, files, waiting, events, ahead), daemon=True)
            for worker in workers
        ]
        if here:
            threads.append(threading.Thread(target=_work, args=(here, waiting, events, stopped), daemon=True))
        running = len(threads)
        threading.Thread(target=_hand_out, args=(tasks, waiting, events, running), daemon=True).start()
        try:
            for thread in threads:
                thread.start()
            while running:
                event = events.get()
                if event is None:
                    running -= 1
                elif isinstance(event, BaseException):
                    raise event
                else:
                    done(*event)
            if not waiting.empty():
                raise DflashError("the workers ended with work left")
        finally:
            self._end(threads, waiting, stopped)

    def _end(
        self,
        threads: Sequence[threading.Thread],
        waiting: queue.SimpleQueue[tuple[int, Json] | None],
        stopped: threading.Event,
    ) -> None:
        """End workers and threads, also when an interrupt comes meanwhile: the thread that works here writes to files
        that are closed afterwards, and their numbers may become other files'."""
        try:
            stopped.set()
            self.close()  # a thread that waits for a reply then gets none
            for _ in threads:
                waiting.put(None)  # and one that waits for a task ends
            for thread in threads:
                if thread.ident:  # it was started
                    thread.join()
        except KeyboardInterrupt:
            self._end(threads, waiting, stopped)
            raise


def _hand_out(
    tasks: Iterable[Json],
    waiting: queue.SimpleQueue[tuple[int, Json] | None],
    events: queue.SimpleQueue[Event],
    count: int,
) -> None:
    """Every task with its number, then an end for each of ``count`` workers."""
    try:
        for numbered in enumerate(tasks):
            waiting.put(numbered)
    except Exception as error:
        events.put(error)
    for _ in range(count):
        waiting.put(None)


def _start(module: str) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The process and our end of its socket; DflashError where the system allows no more of either."""
    with ExitStack() as stack:
        try:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            process = subprocess.Popen(
                child.command(module),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C reaches this program alone, which then kills its workers
            )
        except OSError as error:
            text = f"a worker process cannot be started ({error.strerror})"
            raise DflashError(text, tip="--threads 1 needs the fewest") from error
        stack.pop_all()
        theirs.close()
        return process, ours


def _feed(
    process: subprocess.Popen[bytes],
    link: socket.socket,
    fds: list[int],
    waiting: queue.SimpleQueue[tuple[int, Json] | None],
    events: queue.SimpleQueue[Event],
    ahead: int,
) -> None:
    """Give one worker a task at a time, and ``ahead`` more to go on with, until none is left."""
    given: deque[int] = deque()
    more = True
    try:
        with link.makefile("r", encoding="utf-8") as replies:
            send_files(link, fds)
            _reply(replies)
            while True:
                while more and len(given) <= ahead:
                    try:
                        task = waiting.get(block=not given)
                    except queue.Empty:
                        break
                    more = task is not None
                    if task is not None:
                        link.sendall((json.dumps(task[1]) + "\n").encode())
                        given.append(task[0])
                if not given:
                    break
                reply = _reply(replies)
                if "error" in reply:
                    events.put(getattr(errors, reply["error"], DflashError)(reply["message"], tip=reply["tip"]))
                    break
                events.put((given.popleft(), reply))
    except (OSError, EOFError, ValueError) as error:
        events.put(_ended(process, error))
    events.put(None)


def _work(
    here: Callable[[Json], Json],
    waiting: queue.SimpleQueue[tuple[int, Json] | None],
    events: queue.SimpleQueue[Event],
    stopped: threading.Event,
) -> None:
    """Do tasks in this process until none is left or ``stopped`` is set."""
    try:
        while (task := waiting.get()) is not None and not stopped.is_set():
            events.put((task[0], here(task[1])))
    except MemoryError:
        events.put(_no_memory())
    except Exception as error:
        events.put(error)
    events.put(None)


def _no_memory() -> DflashError:
    return DflashError("there is not enough memory for this work", tip=LEAST_MEMORY)


def _ended(process: subprocess.Popen[bytes], error: Exception) -> DflashError:
    closed = isinstance(error, (BrokenPipeError, ConnectionResetError, EOFError))
    status = process.wait() if closed else process.poll()
    reason = error if status is None else f"exit status {status}"
    tip = f"the system ends what it has no memory for; {LEAST_MEMORY}" if status == KILLED else None
    return DflashError(f"a worker process ended unexpectedly ({reason})", tip=tip)


def _reply(replies: IO[str]) -> Json:
    line = replies.readline()
    if not line:
        raise EOFError
    reply: Json = json.loads(line)
    return reply


def _told(error: DflashError) -> Json:
    return {"error": type(error).__name__, "message": str(error), "tip": error.tip}


def serve(link: socket.socket, work: Callable[[Json, dict[int, int]], Json]) -> None:
    """A worker's life: the files, then one JSON task a line, one JSON reply a line, until the parent is gone.

    ``work`` receives a task and the parent's descriptor numbers with this process's own.
    """
    nobody_else_imports()
    fds = receive_files(link)
    if fds is None:
        return
    try:
        link.sendall(b"{}\n")
        for line in link.makefile(encoding="utf-8"):
            try:
                reply = work(json.loads(line), fds)
            except MemoryError:
                reply = _told(_no_memory())
            except DflashError as error:
                reply = _told(error)
            link.sendall((json.dumps(reply) + "\n").encode())
    except OSError:  # the parent was killed: there is nobody to tell
        return

"""Worker processes for encoding, which may be started before anything large is imported: both then happen at once."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dflash_convert.arrivals import size_of
from dflash_convert.checkpoint import weight_files
from dflash_convert.processes import Workers
from dflash_convert.system import can_share, writes_in_parallel

SMALL = 1 << 25  # elements below which starting workers costs more than it saves


class Pool(Workers):
    """For one exchange ``count`` encoding processes, this one among them; use as a context manager, which ends them."""

    def __init__(self, count: int) -> None:
        super().__init__("encode.worker", count - 1)

    def __enter__(self) -> Pool:
        return self


def pool_size(threads: int | None, elements: int) -> int:
    """How many workers to use; 0: none, work in this process. ``threads`` None leaves the choice to us.

    Workers need files that several processes may write, and sockets that hand files over: Windows has neither.
    """
    if not writes_in_parallel() or not can_share():
        return 0
    cores = os.cpu_count() or 1
    count = min(threads or cores, max(2, cores))
    return 0 if count <= 1 or (threads is None and elements < SMALL) else count


def pool_for(drafter: Path, threads: int | None) -> AbstractContextManager[Pool | None]:
    """The workers for the weights in a directory, by the files' sizes; None where this process does the work."""
    count = pool_size(threads, sum(size_of(file) for file in weight_files(drafter)) // 2)
    return Pool(count) if count else nullcontext()

"""Make the N-th call to the file system fail."""

from __future__ import annotations

import errno
import fcntl
import io
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

# what the program asks of the file system; reading and writing alike
POINTS = (
    (os, "open"),
    (os, "pwrite"),
    (os, "preadv"),
    (os, "fsync"),
    (os, "link"),
    (os, "rename"),
    (os, "replace"),
    (os, "posix_fallocate"),
    (os, "statvfs"),
    (os, "listdir"),
    (fcntl, "flock"),
    (io, "open"),
    (mmap, "mmap"),
)
CODES = (errno.ENOSPC, errno.EIO, errno.EINTR)


@dataclass
class Plan:
    """``number`` counts from 0 over all points; ``calls`` are the names of those that were made."""

    number: int
    code: int
    calls: list[str] = field(default_factory=list)

    @property
    def struck(self) -> str | None:
        return self.calls[self.number] if self.number < len(self.calls) else None


@contextmanager
def failing(plan: Plan) -> Iterator[None]:
    """Within the block call ``plan.number`` raises OSError(``plan.code``); -1 only counts."""

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            plan.calls.append(name)
            if len(plan.calls) - 1 == plan.number:
                raise OSError(plan.code, os.strerror(plan.code))
            return real(*args, **given)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in POINTS:
            patch.setattr(module, name, wrap(name, getattr(module, name)))
        yield


@contextmanager
def short_transfers(size: int) -> Iterator[None]:
    """Within the block no read or write moves more than ``size`` bytes at once, and some move one."""
    write, read = os.pwrite, os.preadv
    turn = [0]

    def limit() -> int:
        turn[0] += 1
        return 1 if turn[0] % 3 == 0 else size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: write(fd, memoryview(data)[: limit()], at))
        patch.setattr(os, "preadv", lambda fd, buffers, at: read(fd, [buffers[0][: limit()]], at))
        yield


@contextmanager
def without_nameless_files() -> Iterator[None]:
    """As on file systems without O_TMPFILE: the output has a hidden name while it is written."""
    real = os.open

    def call(path: Any, flags: int, *args: Any, **given: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", call)
        yield

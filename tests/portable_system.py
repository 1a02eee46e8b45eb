"""Systems that lack what Linux has: each call that the outputs use where it exists, taken away.

Windows has none of them, and neither deletes nor renames a file that someone has open; ``take_away`` brings that
about too, so that a test shows what would happen there.  As ``sitecustomize`` it serves programs that a test starts.
"""

from __future__ import annotations

import collections
import ctypes
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol


class Patch(Protocol):
    def setattr(self, target: Any, name: str, value: Any) -> None: ...
    def delattr(self, target: Any, name: str) -> None: ...
    def setitem(self, mapping: Any, name: str, value: Any) -> None: ...


class ForEver:
    """A patch that is never undone."""

    def setattr(self, target: Any, name: str, value: Any) -> None:
        setattr(target, name, value)

    def delattr(self, target: Any, name: str) -> None:
        delattr(target, name)

    def setitem(self, mapping: Any, name: str, value: Any) -> None:
        mapping[name] = value


MISSING = ("O_TMPFILE", "pwrite", "preadv", "posix_fallocate", "fcntl", "/proc", "statvfs", "renameat2", "link")


def take_away(patch: Patch, missing: tuple[str, ...] = MISSING) -> None:
    for name in missing:
        if name in ("O_TMPFILE", "pwrite", "preadv", "posix_fallocate"):
            _remove(patch, os, name)
    if "O_TMPFILE" in missing and "tempfile" in sys.modules:  # which asked when it was imported
        patch.setattr(sys.modules["tempfile"], "_O_TMPFILE_WORKS", False)
    if "statvfs" in missing:
        _no_statvfs(patch)
    if "renameat2" in missing:
        patch.setattr(ctypes, "CDLL", _no_own_library)
    if "link" in missing:
        patch.setattr(os, "link", _no_links)
    if "/proc" in missing:
        isdir = os.path.isdir
        patch.setattr(os.path, "isdir", lambda path: not str(path).startswith("/proc") and isdir(path))
    if "fcntl" in missing:  # as on Windows alone
        for name in ("O_DIRECTORY", "O_NOFOLLOW", "posix_fadvise", "pread", "killpg", "sched_getaffinity"):
            _remove(patch, os, name)
        for name in ("SIGHUP", "SIGPIPE"):
            _remove(patch, signal, name)
        _remove(patch, socket, "send_fds")
        patch.setitem(sys.modules, "fcntl", None)
        _hold_open_files(patch)


def _remove(patch: Patch, module: Any, name: str) -> None:
    if hasattr(module, name):  # whole suites run without it already
        patch.delattr(module, name)


def _no_statvfs(patch: Patch) -> None:
    if not hasattr(os, "statvfs"):
        return
    real, usage = os.statvfs, collections.namedtuple("usage", "total used free")

    def disk_usage(path: Any) -> Any:
        found = real(path)
        return usage(found.f_blocks * found.f_frsize, 0, found.f_bavail * found.f_frsize)

    patch.setattr(shutil, "disk_usage", disk_usage)
    _remove(patch, os, "statvfs")


def _no_own_library(name: Any, *args: Any, **given: Any) -> Any:
    raise TypeError("this system has no library of that kind")


def _no_links(*_: Any, **__: Any) -> None:
    raise NotImplementedError("link")


def _hold_open_files(patch: Patch) -> None:
    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *args: Any, dir_fd: int | None = None, **given: Any) -> Any:
            whole = os.fsdecode(path)
            if dir_fd is not None:
                whole = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), whole)  # noqa: PTH115, PTH118
                given["dir_fd"] = dir_fd
            ours = sys._getframe(1).f_globals.get("__name__") != "tempfile"  # Windows has another way for these
            if ours and in_use(whole):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), whole)
            return real(path, *args, **given)

        patch.setattr(os, name, call)

    for name in ("unlink", "remove", "rename", "replace"):
        wrap(name)


def in_use(path: str) -> bool:
    """Whether any process has the file, or one below the directory, open; whether this one has it mapped."""
    path = str(Path(path).resolve())
    for process in os.listdir("/proc"):  # noqa: PTH208
        if not process.isdigit():
            continue
        try:
            for fd in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                link = os.readlink(f"/proc/{process}/fd/{fd}")  # noqa: PTH115
                if link == path or link.startswith(path + "/"):
                    return True
        except OSError:  # it ended meanwhile
            continue
    return any(path in line for line in Path("/proc/self/maps").read_text().splitlines())


def environment(directory: Path) -> dict[str, str]:
    """That of a program which is to run on such a system; its ``sitecustomize`` is written to ``directory``."""
    directory.mkdir(exist_ok=True)
    text = "from portable_system import *; take_away(ForEver())\n"
    (directory / "sitecustomize.py").write_text(text, "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(Path(__file__).parent)])}


def main(arguments: list[str]) -> int:
    """pytest on such a system, its workers and all programs that it starts too: ``make portable``."""
    with tempfile.TemporaryDirectory() as directory:
        given = environment(Path(directory) / "site") | {"DFLASH_PORTABLE": "1"}
        return subprocess.call([sys.executable, "-m", "pytest", *arguments], env=given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The system calls behind :mod:`dflash_convert.output`, each with a slower way where it does not exist.

Linux has nameless files, hard links, exchanging renames and locks; macOS, Windows and some file systems lack some of
them.  Windows refuses to delete or rename a file that is open, which serves as the lock there.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # by this file system
NOREPLACE, EXCHANGE = 1, 2  # renameat2(2)


def create(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0), 0o666)


def open_nameless(directory: Path) -> int:
    """A file without a name, which a kill at any moment removes; -1 where there are none or none can be named."""
    nameless = getattr(os, "O_TMPFILE", 0)
    if not nameless or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        return -1
    try:
        return os.open(directory, nameless | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno not in (*NOT_OFFERED, errno.EISDIR, errno.ENOENT):
            raise
        return -1


def name_of(fd: int) -> Path:
    """By which an open nameless file can be read."""
    return Path(f"/proc/self/fd/{fd}")


def link_nameless(fd: int, path: Path) -> None:
    """Give a nameless file a name; FileExistsError when it is taken."""
    # a descriptor, though an absolute path makes it void: without one Python calls link(2), which follows no link
    os.link(name_of(fd), path, src_dir_fd=fd, follow_symlinks=True)


def reserve(fd: int, size: int) -> None:
    """Take the space now, so that a full disk is known before the work."""
    if hasattr(os, "posix_fallocate") and size:
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise
    os.ftruncate(fd, size)


def write_all(fd: int, data: ReadableBuffer, offset: int) -> None:
    """Write ``data`` at ``offset``, however short the single writes are. Without os.pwrite (see
    :func:`writes_in_parallel`) the file's own position moves."""
    view = memoryview(data).cast("B")
    while view:
        if hasattr(os, "pwrite"):
            done = os.pwrite(fd, view, offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            done = os.write(fd, view)
        if done <= 0:  # no file system should; looping on it would never end
            raise OSError(errno.EIO, "nothing was written")
        view = view[done:]
        offset += done


def read_all(fd: int, buffer: memoryview, offset: int) -> bool:
    """Fill ``buffer`` from ``offset`` on, however short the single reads are; False when the file ends before."""
    while buffer:
        if hasattr(os, "preadv"):
            done = os.preadv(fd, [buffer], offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            part = os.read(fd, len(buffer))
            done = len(part)
            buffer[:done] = part
        if done == 0:
            return False
        buffer, offset = buffer[done:], offset + done
    return True


def writes_in_parallel() -> bool:
    """Whether several processes may call :func:`write_all` on one file."""
    return hasattr(os, "pwrite")


def link_or_rename(source: Path, path: Path) -> None:
    """FileExistsError when ``path`` exists; else it is ``source``, whose old name may still stand."""
    try:
        os.link(source, path)
        return
    except (AttributeError, NotImplementedError, PermissionError):  # file systems without hard links
        pass
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
    if renameat2(source, path, NOREPLACE):
        return
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    source.rename(path)  # which Windows refuses when the path appears in this moment


def renameat2(source: Path, target: Path, flag: int) -> bool:
    """Linux's rename that exchanges two names or never replaces one; False where there is none."""
    import ctypes  # costs milliseconds that most runs need not spend

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here = -100  # AT_FDCWD
    if call(here, os.fsencode(source), here, os.fsencode(target), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), str(target))


def peak_memory() -> tuple[int, int]:
    """Bytes that this process, and the largest of its children that have ended, held at most; 0 where nobody knows."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0, 0
    unit = 1 if sys.platform == "darwin" else 1024
    own, ended = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own * unit, ended * unit


def sync_directory(path: Path) -> None:
    """Make its names last; Windows cannot open a directory and needs no sync."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def has_locks() -> bool:
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True


def flock(fd: int) -> None:
    """Hold the file until it is closed, however this process ends; OSError when someone else holds it."""
    if has_locks():
        import fcntl  # Linux and macOS alone have it

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def cores() -> int | None:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def load() -> float | None:
    """Busy cores of the whole machine, an average over the last minute; None where the system keeps none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None

"""What not every system has, each with another way where it does not exist; no other module asks which it runs on.

Linux has nameless files, hard links, exchanging renames and locks; macOS, Windows and some file systems lack some of
them.  Windows refuses to delete or rename a file that is open, which serves as the lock there.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

KILLED = -9  # the exit status of a process ended by SIGKILL, which not every system names
PIPE = "a pipe"
PLACES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: PIPE,
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
PIPE_TIP = "files are read more than once and in places, a pipe cannot be: write it to a file first"
NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # by this file system
READ_SIZE = 1 << 20  # bytes of one read into a buffer that has to be copied
MAX_FDS = 250  # that one message can carry
NOREPLACE, EXCHANGE = 1, 2  # renameat2(2)


def kind_of_place(path: Path) -> str | None:
    """What is at ``path`` when it is something else than a file; None for a file and for nothing at all."""
    try:
        return PLACES.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return None


def tip_for(kind: str | None, tip: str | None = None) -> str | None:
    """``tip`` for what :func:`kind_of_place` says; a pipe has a cure of its own."""
    return PIPE_TIP if kind == PIPE else tip


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
        done = read_some(fd, buffer, offset)
        if done == 0:
            return False
        buffer, offset = buffer[done:], offset + done
    return True


def read_some(fd: int, buffer: memoryview, offset: int) -> int:
    """How many bytes from ``offset`` on were read into ``buffer``; 0 at the end of the file."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [buffer], offset)
    os.lseek(fd, offset, os.SEEK_SET)
    part = os.read(fd, min(len(buffer), READ_SIZE))
    buffer[: len(part)] = part
    return len(part)


def open_read(path: Path) -> int:
    """For reading bytes: Windows would change line ends."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def can_share() -> bool:
    """Whether open files can be handed to other processes (:func:`send_files`)."""
    return hasattr(socket, "send_fds")


def send_files(link: socket.socket, fds: list[int]) -> None:
    socket.send_fds(link, [json.dumps(fds).encode()], fds)


def receive_files(link: socket.socket) -> dict[int, int] | None:
    """The sender's descriptor numbers with this process's own; None when the sender is gone."""
    message, received, _, _ = socket.recv_fds(link, 1 << 16, MAX_FDS)
    return dict(zip(json.loads(message), received, strict=True)) if message else None


def ending_signals() -> tuple[signal.Signals, ...]:
    """By which a program is politely asked to end, besides Ctrl-C; a terminal's hang-up where there is one."""
    return tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def signal_main_thread(number: int) -> None:
    """As if signal ``number`` had come from outside: where threads can be signalled it also ends what waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def end_group(child: subprocess.Popen[bytes], *, kill: bool = False) -> None:
    """Ask ``child`` and its own children to end, or end them. It was started with ``start_new_session``; where there
    are no groups of processes only the child is ended, and its workers and engines end with it."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL if kill else signal.SIGTERM)
        elif kill:
            child.kill()
        else:
            child.terminate()


def start_writeback(fd: int, offset: int, nbytes: int) -> None:
    """Let the disk begin now: the sync at the end, which no worker shares, then waits for little."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # advice; a failed write is told by fsync
            os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def open_log(prefix: str) -> tuple[IO[bytes], int, Path | None]:
    """A temporary file for a child to write to, a descriptor to read it by meanwhile, and its name where it has one.

    Without reads at an offset the reader needs a position of its own, and so a file that can be opened again.
    """
    if hasattr(os, "preadv"):
        file = tempfile.TemporaryFile(prefix=prefix)  # noqa: SIM115 - the caller closes it
        return file, file.fileno(), None
    named = tempfile.NamedTemporaryFile(prefix=prefix, delete=False)  # noqa: SIM115
    return named, open_read(Path(named.name)), Path(named.name)


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

"""Whole or nothing: an output path holds what it held before or something complete, files and directories alike.

A file is written without a name (O_TMPFILE) where the system can do that. Everything else lies in a hidden directory
beside the output, ``.NAME.xxxxxxxx.partial``, until it is complete: its lock file tells other runs that it is in use,
so what a killed run left is removed by the next run for the same output. Nothing is replaced without ``force``, also
when it appears between the start and the end.

The calls that not every system has, and what is done without them, are in :mod:`dflash_convert.system`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_convert import system
from dflash_convert.errors import DflashError, OutputError
from dflash_convert.text import size

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import ReadableBuffer

TIPS = {
    errno.ENOSPC: "free some space or choose another output directory",
    errno.EDQUOT: "the disk quota is used up: choose another output directory",
    errno.EFBIG: "the file size limit of this shell or file system is too small (ulimit -f)",
    errno.EACCES: "choose an output directory you may write to (-o)",
    errno.EROFS: "the file system is read-only: choose another output directory (-o)",
    errno.ENOENT: "create the output directory first",
    errno.EISDIR: "give a file name",
    errno.ENAMETOOLONG: "a file's name has at most 255 bytes: give a shorter one",
}
# in a hidden directory: the file that its user holds; what was moved out of the way
READ = (".safetensors", ".json", ".model", ".jinja", ".txt", ".tiktoken", ".md", ".py")  # of a model's directory
LOCK, OLD = ".dflash-convert.lock", ".dflash-convert.old"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within the block an OSError is an :class:`OutputError` about ``path``."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}", tip=TIPS.get(error.errno or 0)
        ) from error


def exists_error(path: Path, other: str = "another name") -> OutputError:
    """``other`` is the way to another place."""
    return OutputError(f"{path} exists already", tip=f"--force replaces it; {other} leaves it as it is")


def refuse_taken(path: Path, inputs: Iterable[Path], *, force: bool, other: str) -> None:
    """OutputError when ``path`` is one of ``inputs`` or, without ``force``, exists."""
    refuse_input(path, inputs)
    if not force and os.path.lexists(path):
        raise exists_error(path, other)


def check_output_path(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """OutputError when ``path`` cannot be a file: it is something else, exists (without ``force``), is one of
    ``inputs``, or its directory is missing or not writable."""
    refuse_special(path)
    if path.is_dir():
        raise OutputError(f"{path} is a directory", tip="give a file name")
    refuse_input(path, inputs)
    if not force and os.path.lexists(path):
        raise exists_error(path)
    check_directory(path)


def refuse_special(path: Path) -> None:
    """OutputError when neither a file nor a directory can be at ``path``: it is a device, a pipe or a socket, or its
    name is longer than the file system has."""
    with disk_errors(path), suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        path.lstat()
    kind = system.kind_of_place(path)
    if kind is not None and not path.is_dir():
        raise OutputError(f"{path} is {kind}, which is never replaced", tip="give another name")


def refuse_input(path: Path, inputs: Iterable[Path]) -> None:
    """OutputError when ``path`` is one of ``inputs``, or what a directory among them is read for."""
    refuse_special(path)
    if not path.exists():
        return
    for source in inputs:
        part = source.is_dir() and path.suffix in READ and path.parent.samefile(source)
        if part or (source.exists() and path.samefile(source)):
            raise OutputError(f"{path} is also the input", tip="choose another output name")


def check_directory(path: Path) -> None:
    """OutputError when the directory of ``path`` does not exist or takes no files."""
    refuse_special(path)
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory", tip="create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        with disk_errors(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def try_place(path: Path) -> None:
    """OutputError when no file can be made at ``path`` now: permissions alone do not tell (``/proc``, root, quotas)."""
    try:
        fd = system.open_nameless(path.parent)
        if fd >= 0:
            os.close(fd)
        else:
            Hidden(path).close()
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {path.parent} takes no files ({error.strerror})", tip="choose another directory"
        ) from error


def make_parent(path: Path) -> None:
    """Create the output's directory when only its last part is missing."""
    if path.parent.parent.is_dir() and not path.parent.exists():
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)


def check_space(directory: Path, need: int) -> None:
    """OutputError when ``directory``'s file system has fewer than ``need`` bytes free."""
    with disk_errors(directory):
        free = shutil.disk_usage(directory).free
    if need > free:
        raise OutputError(f"{directory} has {size(free)} free, the output needs {size(need)}", tip=TIPS[errno.ENOSPC])


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write ``text`` as UTF-8, line ends unchanged; OutputError leaves ``path`` as it was."""
    data = text.encode("utf-8")
    with OutputFile(path, len(data), force=force) as file:
        file.write_at(0, data)
        file.commit()


class OutputFile:
    """A file of ``size`` bytes under construction; use as a context manager, call :meth:`commit` at the end.

    Bytes may arrive in any order and from several processes (``fileno``). All failures of the disk become
    :class:`OutputError`; the space is taken at the start.
    """

    def __init__(self, path: Path, size: int, *, force: bool = False) -> None:
        self.path = path
        self._force = force
        self._finished = False
        self._fd = -1
        self._hidden: Hidden | None = None
        check_output_path(path, force=force)
        try:
            with disk_errors(path):
                sweep(path)
                self._fd = system.open_nameless(path.parent)
                if self._fd < 0:
                    self._hidden = Hidden(path)
                    self._fd = system.create(self._hidden.content)
                system.reserve(self._fd, size)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def write_at(self, offset: int, data: ReadableBuffer) -> None:
        """Write all of ``data`` at ``offset``, however short the single writes are."""
        with disk_errors(self.path):
            system.write_all(self._fd, data, offset)

    def read_back(self, source: Path) -> None:
        """What must hold of the finished bytes, which can be read at ``source``; raises when it does not."""

    def finish(self) -> None:
        """Sync and read back: what can fail does so while no path has changed, also when there are several files."""
        if not self._finished:
            with disk_errors(self.path):
                os.fsync(self._fd)
            self.read_back(self._hidden.content if self._hidden else system.name_of(self._fd))
            self._finished = True

    def commit(self) -> None:
        """Finish, move into place, sync the directory."""
        self.finish()
        with disk_errors(self.path):
            if self._hidden is None:
                self._name()
            else:
                self._close_file()  # Windows renames no open file
                _place(self._hidden.content, self.path, force=self._force)
            system.sync_directory(self.path.parent)

    def close(self) -> None:
        """Drop the file unless it was committed; safe to call twice."""
        self._close_file()
        if self._hidden is not None:
            self._hidden.close()
            self._hidden = None

    def _close_file(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _name(self) -> None:
        """Give the nameless file its name."""
        if self._force:
            self._hidden = Hidden(self.path)
            system.link_nameless(self._fd, self._hidden.content)
            self._hidden.content.replace(self.path)
            return
        try:
            system.link_nameless(self._fd, self.path)
        except FileExistsError:
            raise exists_error(self.path) from None


@contextmanager
def withheld(paths: Sequence[Path], *, force: bool, keep_failed: bool) -> Iterator[list[Path]]:
    """Places for files that get their names, ``paths``, when the block ends well.

    With ``keep_failed`` they also get them when it does not; otherwise a failure leaves the outputs as they were.
    """
    for path in paths:
        make_parent(path)
        check_output_path(path, force=force)
    with ExitStack() as stack:
        hidden = []
        for path in paths:
            with disk_errors(path):
                sweep(path)
                hidden.append(stack.enter_context(Hidden(path)))
        places = [each.content for each in hidden]
        try:
            yield places
        except BaseException as error:
            said = _keep(places, paths, force=force) if keep_failed else None
            if isinstance(error, DflashError):
                wanted = None if keep_failed else "nothing was written; --keep-failed keeps the file"
                error.tip = said or error.tip or wanted
            raise
        _place_all(places, paths, force=force)


@contextmanager
def whole_directory(out: Path, check: Callable[[], None]) -> Iterator[Path]:
    """A directory to fill, which takes the place of ``out`` when the block ends well.

    ``check`` raises when ``out`` stands and may not be replaced; it is asked at the start and again at the end.
    """
    check_directory(out)
    check()
    with disk_errors(out):
        sweep(out)
        with Hidden(out) as hidden:
            hidden.content.mkdir()
            yield hidden.content
            _sync_tree(hidden.content)
            check()
            _place_directory(hidden, out)
            system.sync_directory(out.parent)


class Hidden:
    """A hidden directory beside ``output``, in use until :meth:`close` removes it; what becomes the output is
    ``content``, which is still to be made."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.path, self._lock = _make_hidden(output)
        self.content = self.path / output.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self.content.unlink()
        if self.content.is_dir():
            shutil.rmtree(self.content, ignore_errors=True)
        os.close(self._lock)
        with suppress(OSError):
            (self.path / LOCK).unlink()
        with suppress(OSError):
            self.path.rmdir()
            return
        with suppress(OSError):  # something more was put there
            _remove(self.path, self._output)


def sweep(output: Path) -> None:
    """Remove what killed runs left beside ``output``; what a living run holds stays."""
    pattern = re.compile(re.escape(_prefix(output)) + r"[0-9a-f]{8}\.partial")
    for name in filter(pattern.fullmatch, os.listdir(output.parent)):  # noqa: PTH208
        with suppress(OSError):
            _sweep_one(output.parent / name, output)


def _sweep_one(hidden: Path, output: Path) -> None:
    if hidden.is_symlink() or not hidden.is_dir():
        return
    if not any(hidden.iterdir()):
        hidden.rmdir()  # its maker has no lock yet: it makes another one
        return
    lock = -1
    with suppress(FileNotFoundError):  # then another sweep was killed here
        lock = _take(hidden / LOCK)
    try:
        _remove(hidden, output)
    finally:
        if lock >= 0:
            os.close(lock)


def _remove(hidden: Path, output: Path) -> None:
    """What was set aside for an output that never came returns first."""
    if (hidden / OLD).is_dir() and not os.path.lexists(output):
        (hidden / OLD).rename(output)
    shutil.rmtree(hidden)


def _prefix(output: Path) -> str:
    return "." + os.fsdecode(os.fsencode(output.name)[:200]) + "."


def _make_hidden(output: Path) -> tuple[Path, int]:
    """The directory and its open lock file."""
    while True:
        path = output.parent / f"{_prefix(output)}{secrets.token_hex(4)}.partial"
        path.mkdir()
        try:
            lock = system.create(path / LOCK)
        except FileNotFoundError:  # swept by another run before it had its lock
            continue
        except BaseException:
            path.rmdir()
            raise
        with suppress(OSError):  # some network file systems have no locks; then nothing is ever swept there
            system.flock(lock)
        if (path / LOCK).exists():
            return path, lock
        os.close(lock)


def _take(lock: Path) -> int:
    """The open lock of a hidden directory that nobody uses, or -1 where it was deleted; OSError when it is held."""
    if not system.has_locks():
        lock.unlink()
        return -1
    fd = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        system.flock(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _keep(places: Sequence[Path], paths: Sequence[Path], *, force: bool) -> str | None:
    """Name what a failed run made; what to say when that cannot be done."""
    try:
        _place_all(places, paths, force=force)
    except OutputError as error:
        return f"the output was not kept: {error}"
    return None


def _place_all(places: Sequence[Path], paths: Sequence[Path], *, force: bool) -> None:
    made = [(place, path) for place, path in zip(places, paths, strict=True) if place.exists()]
    for _, path in made:
        check_output_path(path, force=force)
    for place, path in made:
        with disk_errors(path):
            _place(place, path, force=force)
            system.sync_directory(path.parent)


def _place(source: Path, path: Path, *, force: bool) -> None:
    """Move a file; without ``force`` OutputError when ``path`` exists."""
    if force:
        source.replace(path)
        return
    try:
        system.link_or_rename(source, path)
    except FileExistsError:
        raise exists_error(path) from None


def _place_directory(hidden: Hidden, out: Path) -> None:
    """Move the content to ``out``; what stands there takes its place in the hidden directory."""
    if not os.path.lexists(out):
        try:
            hidden.content.rename(out)
        except OSError as error:
            if os.path.lexists(out):
                raise exists_error(out) from error
            raise
    elif not system.renameat2(hidden.content, out, system.EXCHANGE):
        out.rename(hidden.path / OLD)  # an error or a kill from here on: `_remove` brings it back
        hidden.content.rename(out)


def _sync_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
    system.sync_directory(directory)

"""A streaming, atomic GGUF v3 writer.

The header follows from the keys and the tensor list alone, so it is written first and every tensor has a
known place: bytes may arrive in any order and from several processes (`fileno`, `offset`).  The file has no
name until it is complete: it is unlinked (O_TMPFILE) where the system can do that, else a hidden file in the
same directory that is removed on any failure.  `commit` syncs it, reads it back with the strict reader and
moves it into place.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import struct
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from dflash_convert.container.reader import MAX_ALIGNMENT, MAX_KEY, open_gguf
from dflash_convert.container.types import (
    ALIGNMENT,
    BLOCK,
    KV,
    MAGIC,
    MAX_DIMS,
    MAX_NAME,
    STRUCT_CODE,
    VERSION,
    TensorType,
    ValueType,
    tensor_nbytes,
)
from dflash_convert.errors import ContainerError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

TIPS = {
    errno.ENOSPC: "free some space or choose another output directory",
    errno.EDQUOT: "the disk quota is used up: choose another output directory",
    errno.EFBIG: "the file size limit of this shell or file system is too small (ulimit -f)",
    errno.EACCES: "choose an output directory you may write to (-o)",
    errno.EROFS: "the file system is read-only: choose another output directory (-o)",
    errno.ENOENT: "create the output directory first",
    errno.EISDIR: "give a file name",
}


class Entry(NamedTuple):
    """A tensor to write: ``shape`` in numpy order, the row last."""

    name: str
    shape: tuple[int, ...]
    type: TensorType


class Layout(NamedTuple):
    """The finished header, each tensor's offset from the start of the file, and the file's exact size."""

    header: bytes
    offsets: dict[str, int]
    size: int


def layout(keys: Sequence[KV], tensors: Sequence[Entry]) -> Layout:
    """Header bytes and tensor places; ContainerError for names, shapes or values the format forbids."""
    out = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(keys)))
    alignment = _alignment(keys)
    seen: set[str] = set()
    for kv in keys:
        if not kv.name or kv.name in seen:
            raise ContainerError(f"key {kv.name!r} is empty or occurs twice")
        seen.add(kv.name)
        _put_value(out, kv)
    relative: dict[str, int] = {}
    position = 0
    for entry in tensors:
        _check_entry(entry, relative)
        relative[entry.name] = position
        _put_string(out, entry.name, "tensor name")
        dims = entry.shape[::-1]
        out += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, entry.type, position)
        nbytes = tensor_nbytes(entry.type, entry.shape)
        position += nbytes + -nbytes % alignment
    out += bytes(-len(out) % alignment)
    return Layout(bytes(out), {name: len(out) + at for name, at in relative.items()}, len(out) + position)


def _alignment(keys: Sequence[KV]) -> int:
    """The file's own alignment, which a GGUF made from another one keeps."""
    for kv in keys:
        if kv.name == "general.alignment":
            value = kv.value
            if kv.type is not ValueType.UINT32 or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
                raise ContainerError(f"general.alignment {value!r} is not a UINT32 power of two up to {MAX_ALIGNMENT}")
            return int(value)
    return ALIGNMENT


def _check_entry(entry: Entry, seen: dict[str, int]) -> None:
    name, shape, kind = entry
    if not 0 < len(name.encode(errors="surrogatepass")) <= MAX_NAME:
        raise ContainerError(f"tensor name {name!r} is not 1 to {MAX_NAME} bytes long, which llama.cpp requires")
    if name in seen:
        raise ContainerError(f"tensor {name!r} occurs twice")
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1:
        raise ContainerError(
            f"tensor {name!r} has shape {list(shape)}: 1 to {MAX_DIMS} dimensions of 1 or more are allowed"
        )
    if shape[-1] % BLOCK[kind][0]:
        raise ContainerError(f"rows of tensor {name!r} have {shape[-1]} elements, which {kind.name} cannot hold")


def _put_string(out: bytearray, text: str | bytes, what: str) -> None:
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ContainerError(f"{what} holds half a character ({error.object[error.start]!a})") from None
    out += struct.pack("<Q", len(data))
    out += data


def _put_value(out: bytearray, kv: KV) -> None:
    if len(kv.name.encode(errors="surrogatepass")) > MAX_KEY:
        raise ContainerError(f"key {kv.name[:40]!r}... is longer than {MAX_KEY} bytes")
    _put_string(out, kv.name, "key name")
    out += struct.pack("<I", kv.type)
    if kv.type is ValueType.STRING:
        _put_string(out, kv.value, kv.name)
    elif kv.type is ValueType.ARRAY:
        if kv.item is None:
            raise ContainerError(f"array key {kv.name!r} has no item type")
        _put_array(out, kv.name, kv.item, kv.value)
    else:
        try:
            out += struct.pack("<" + STRUCT_CODE[kv.type], kv.value)
        except (struct.error, OverflowError):
            raise ContainerError(f"{kv.name} = {kv.value!r} does not fit its type {kv.type.name}") from None


def _put_array(out: bytearray, name: str, item: ValueType, values: Sequence[Any]) -> None:
    if item is ValueType.ARRAY:
        raise ContainerError(f"key {name!r} is an array of arrays, which llama.cpp does not read")
    out += struct.pack("<IQ", item, len(values))
    try:
        if item is not ValueType.STRING:
            out += struct.pack(f"<{len(values)}{STRUCT_CODE[item]}", *values)
            return
        pack = struct.Struct("<Q").pack
        for text in values:
            data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
            out += pack(len(data))
            out += data
    except (struct.error, OverflowError):
        raise ContainerError(f"an item of {name} does not fit its type {item.name}") from None
    except UnicodeEncodeError as error:
        raise ContainerError(f"an item of {name} holds half a character ({error.object[error.start]!a})") from None


class GgufOutput:
    """A GGUF file under construction; use as a context manager, call :meth:`commit` at the end.

    Without ``force`` an existing path is an error at the start and at the end (a file that appeared meanwhile
    is not overwritten).  All failures of the disk become :class:`OutputError`.
    """

    def __init__(self, path: Path, tensors: Sequence[Entry], plan: Layout, *, force: bool = False) -> None:
        self.path = path
        self._entries = list(tensors)
        self._offsets, self._size = plan.offsets, plan.size
        self._force = force
        self._finished = False
        self._prefix = "." + os.fsdecode(os.fsencode(path.name)[:200]) + "."
        check_output_path(path, force=force)
        self._temporary: str | None = None
        self._fd = -1
        with disk_errors(path):
            self._dir = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with disk_errors(path):
                self._sweep()
                self._open()
                self._reserve()
                self.write_at(0, plan.header)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> GgufOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def offset(self, name: str) -> int:
        """Where tensor ``name`` begins, in bytes from the start of the file."""
        return self._offsets[name]

    def write_at(self, offset: int, data: ReadableBuffer) -> None:
        """Write all of ``data`` at ``offset``, however short the single writes are."""
        with disk_errors(self.path):
            pwrite_all(self._fd, data, offset)

    def commit(self) -> None:
        """Sync, read back, move into place, sync the directory."""
        self.finish()
        with disk_errors(self.path):
            self._publish()
            os.fsync(self._dir)

    def finish(self) -> None:
        """Sync and read back: what can fail does so while no path has changed, also when there are several files."""
        if not self._finished:
            with disk_errors(self.path):
                os.fsync(self._fd)
                self._read_back()
            self._finished = True

    def close(self) -> None:
        """Drop the file unless it was committed; safe to call twice."""
        if self._temporary is not None:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._dir)
            self._temporary = None
        for fd in (self._fd, self._dir):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._fd = self._dir = -1

    def _sweep(self) -> None:
        """Remove what a killed run left here for the same output; a file that a living run has locked stays."""
        pattern = re.compile(re.escape(self._prefix) + r"[0-9a-f]{8}\.partial")
        for name in filter(pattern.fullmatch, os.listdir(self._dir)):  # noqa: PTH208
            with suppress(OSError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._dir)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=self._dir)
                finally:
                    os.close(fd)

    def _open(self) -> None:
        self._create()
        with suppress(OSError):  # some network file systems have no locks; then nothing is ever swept there
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _create(self) -> None:
        nameless = getattr(os, "O_TMPFILE", 0)
        if nameless and os.path.isdir("/proc/self/fd"):  # noqa: PTH112
            try:
                self._fd = os.open(".", nameless | os.O_RDWR, 0o666, dir_fd=self._dir)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                    raise
        name = self._hidden_name()
        self._fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666, dir_fd=self._dir)
        self._temporary = name

    def _hidden_name(self) -> str:
        return f"{self._prefix}{secrets.token_hex(4)}.partial"

    def _reserve(self) -> None:
        """Take the space now, so that a full disk is known before the work."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, 0, self._size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        os.ftruncate(self._fd, self._size)

    def _read_back(self) -> None:
        if self._temporary is not None:
            name = self.path.parent / self._temporary
        else:
            name = Path(f"/proc/self/fd/{self._fd}")
        found = open_gguf(name)
        expected = [(e.name, e.shape, e.type, self._offsets[e.name]) for e in self._entries]
        if [(t.name, t.shape, t.type, t.offset) for t in found.tensors.values()] != expected:
            raise OutputError(f"{self.path}: what was written does not read back as planned")

    def _publish(self) -> None:
        name = self.path.name
        if self._temporary is None:
            if not self._force:
                self._link(f"/proc/self/fd/{self._fd}", name)
                return
            self._temporary = self._hidden_name()
            self._link(f"/proc/self/fd/{self._fd}", self._temporary)
        elif not self._force:
            with suppress(PermissionError, NotImplementedError):  # file systems without hard links
                self._link(self._temporary, name)
                return
        os.rename(self._temporary, name, src_dir_fd=self._dir, dst_dir_fd=self._dir)
        self._temporary = None

    def _link(self, source: str, name: str) -> None:
        try:
            os.link(source, name, src_dir_fd=self._dir, dst_dir_fd=self._dir, follow_symlinks=True)
        except FileExistsError:
            raise exists_error(self.path) from None


def pwrite_all(fd: int, data: ReadableBuffer, offset: int) -> None:
    """os.pwrite until everything is written."""
    view = memoryview(data).cast("B")
    while view:
        done = os.pwrite(fd, view, offset)
        if done <= 0:  # no file system should; looping on it would never end
            raise OSError(errno.EIO, "nothing was written")
        view = view[done:]
        offset += done


def exists_error(path: Path) -> OutputError:
    return OutputError(f"{path} exists already", tip="--force replaces it")


def check_output_path(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """OutputError when ``path`` is a directory, exists (without ``force``) or is one of ``inputs``."""
    if path.is_dir():
        raise OutputError(f"{path} is a directory", tip="give a file name")
    if path.exists() and not path.is_file():
        raise OutputError(f"{path} is not a regular file", tip="give a file name")
    for source in inputs:
        if path.exists() and source.exists() and path.samefile(source):
            raise OutputError(f"{path} is also the input", tip="choose another output name")
    if not force and (path.exists() or path.is_symlink()):
        raise exists_error(path)
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory", tip="create it first")


def make_parent(path: Path) -> None:
    """Create the output's directory when only its last part is missing."""
    if path.parent.parent.is_dir() and not path.parent.exists():
        with disk_errors(path):
            path.parent.mkdir(exist_ok=True)


def check_space(directory: Path, need: int) -> None:
    """OutputError when ``directory``'s file system has fewer than ``need`` bytes free."""
    with disk_errors(directory):
        status = os.statvfs(directory)
    free = status.f_bavail * status.f_frsize
    if need > free:
        raise OutputError(
            f"{directory} has {free / 1e6:,.0f} MB free, the output needs {need / 1e6:,.0f} MB", tip=TIPS[errno.ENOSPC]
        )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}", tip=TIPS.get(error.errno or 0)
        ) from error

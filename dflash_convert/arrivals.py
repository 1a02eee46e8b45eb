"""Weight files that are still being fetched: their headers are here, and whoever needs more of one waits for it.

A conversion can plan everything from headers, and encode what has arrived while the rest is on its way.  The files of
one conversion at a time are known to this process; to everyone else they are files that do not exist yet.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dflash_convert.errors import DflashError
from dflash_convert.output import disk_errors

Item = TypeVar("Item")


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, its header among them, and how many it has in all."""

    data: bytes
    size: int


class Arrivals:
    """Files by their final paths, fetched one after another from :meth:`begin` on; a context manager makes them known.

    ``fetch`` puts the file at its path whose head was given, or raises.  Whoever waits when the block ends gets an
    error, and what is being fetched then is left to itself: the thread ends with the program.
    """

    def __init__(self, heads: Mapping[Path, Head], fetch: Callable[[Path], object]) -> None:
        self._heads, self._fetch = heads, fetch
        self._changed = threading.Condition()
        self._here: set[Path] = set()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stand_ins: dict[Path, Path] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Arrivals:
        global _current
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dflash-headers-")))
            for number, (path, head) in enumerate(self._heads.items()):
                self._stand_ins[path] = folder / str(number) / path.name
                with disk_errors(self._stand_ins[path]):
                    _stand_in(self._stand_ins[path], head)
            self._stack = stack.pop_all()
        _current = self
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        _current = None
        with self._changed:
            self._error = self._error or DflashError("the files were no longer wanted")
            self._changed.notify_all()
        self._stack.close()

    def begin(self) -> None:
        """Start fetching, once."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()

    def _run(self) -> None:
        for path in self._heads:
            with self._changed:
                if self._error:
                    return
            try:
                self._fetch(path)
            except Exception as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                self._here.add(path)
                self._changed.notify_all()

    def expected(self) -> list[Path]:
        """The files that are not here yet, in the order in which they will come."""
        with self._changed:
            return [path for path in self._heads if path not in self._here]

    def sizes(self) -> dict[Path, int]:
        return {path: head.size for path, head in self._heads.items()}

    def stand_in(self, path: Path) -> Path:
        return self._stand_ins.get(path, path)

    def next(self, waiting: Sequence[Path]) -> None:
        """Wait until one of ``waiting`` files is here; the error of the one that could not be fetched."""
        self.begin()
        with self._changed:
            before = len(self._here)
            if not any(path in self._here for path in waiting):
                self._changed.wait_for(lambda: self._error or len(self._here) > before)
            if self._error:
                raise self._error


def _stand_in(path: Path, head: Head) -> None:
    """A sparse file, which takes no room."""
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(head.data)
        file.truncate(head.size)


_current: Arrivals | None = None


def expected(directory: Path) -> list[Path]:
    """Files of ``directory`` that are on their way."""
    return [path for path in _current.expected() if path.parent == directory] if _current else []


def present(path: Path) -> bool:
    """Whether ``path`` is a file or will be one."""
    return path.is_file() or path in expected(path.parent)


def size_of(path: Path) -> int:
    """The bytes that ``path`` has, or will have."""
    sizes = _current.sizes() if _current else {}
    return sizes[path] if path in sizes else path.stat().st_size


def header_of(path: Path) -> Path:
    """Where the header of ``path`` can be read: a sparse file of the same size while it is on its way."""
    return _current.stand_in(path) if _current and path in _current.expected() else path


def wait(path: Path) -> None:
    """Return when nothing of ``path`` is on its way; HubError when it cannot be fetched."""
    while _current and path in _current.expected():
        _current.next([path])


def in_order(items: Sequence[Item], files: Callable[[Item], Iterable[Path]]) -> Iterator[Item]:
    """``items`` as they are, but those first whose ``files`` are here; waits for the rest."""
    left, current = list(items), _current
    while left and current is not None:
        missing = set(current.expected())
        held = [item for item in left if missing.intersection(files(item))]
        yield from (item for item in left if not missing.intersection(files(item)))
        left = held
        if left:
            current.next([path for item in left for path in files(item) if path in missing])
    yield from left

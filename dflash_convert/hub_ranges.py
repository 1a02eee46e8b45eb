"""Parts of a file on the Hub by range requests; an answer that is no such part is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import HubError
from dflash_convert.hub_trouble import LISTING_TIP, PAGE_TIP


@dataclass(frozen=True)
class Remote:
    """``name`` is the file with its repository, for messages; ``size`` in bytes, as the Hub lists it."""

    name: str
    size: int
    _file: Any

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, no further than the file's end; HubError for an answer of another length."""
        wanted = max(0, min(end, self.size) - start)
        if not wanted:
            return b""
        self._file.seek(start)
        data = bytes(self._file.read(wanted))
        if len(data) == self.size:  # a server between that knows no ranges
            data = data[start : start + wanted]
        if len(data) != wanted:
            raise HubError(
                f"{self.name}: {wanted} bytes of it were asked for, the answer has {len(data)}", tip=PAGE_TIP
            )
        return data


@contextmanager
def remote(repository: str, commit: str, name: str) -> Iterator[Remote]:
    """A file of the Hub at ``commit``; the library's own errors pass."""
    from huggingface_hub import HfFileSystem

    with HfFileSystem().open(f"{repository}@{commit}/{name}", "rb", cache_type="none") as file:
        size = file.size
        if not isinstance(size, int) or not 0 <= size < 1 << 63:  # which no file system has, either
            raise HubError(f"{repository}: {name}: the Hub's listing gives its size as {size!r}", tip=LISTING_TIP)
        yield Remote(f"{repository}: {name}", size, file)

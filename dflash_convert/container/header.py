"""A GGUF's header without the file: from its first bytes, as many as the header turns out to have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash_convert import text
from dflash_convert.container.reader import HEADER_BYTES, INCOMPLETE, Beyond, Gguf
from dflash_convert.errors import ContainerError

FIRST = 1 << 20  # bytes asked for at first; each further request doubles what is there
MOST = 256 << 20  # the longest header that is read; those of the largest vocabularies have 20 MB


def read_header(path: Path, size: int, read: Callable[[int, int], bytes]) -> Gguf:
    """The header of a file of ``size`` bytes that errors call ``path``; ``read(start, end)`` gives bytes of it.

    Nothing behind the header is asked for but the rest of the last request.  ContainerError for a damaged header.
    """
    if size < HEADER_BYTES:
        raise ContainerError(f"{path}: {size} bytes are too few for a GGUF header", tip=INCOMPLETE)
    data, wanted = bytearray(), FIRST
    while True:
        wanted = min(wanted, size)
        part = read(len(data), wanted)
        if len(part) != wanted - len(data):
            raise ContainerError(f"{path}: {len(part)} of {wanted - len(data)} bytes came", tip="try again")
        data += part
        try:
            return Gguf(path, memoryview(bytes(data)), size)
        except Beyond as beyond:
            wanted = max(beyond.end, 2 * len(data))
            if beyond.end > MOST:
                raise ContainerError(f"{path}: its header is longer than {text.size(MOST)}") from None

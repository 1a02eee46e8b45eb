"""GGUF: header, keys, tensor table; then everything that is decoded lazily."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def reader() -> Callable[[bytes], object]:
    from dflash_convert.container.reader import HEADER_BYTES, Gguf
    from dflash_convert.container.writer import Entry, layout

    def read(data: bytes) -> None:
        if len(data) < HEADER_BYTES:
            return
        file = Gguf(Path("x.gguf"), memoryview(data), len(data))
        for kv in file.keys.values():
            if kv.item is not None:
                list(kv.value)
        for name in file.tensors:
            if file.data(name).size != file.tensors[name].nbytes:
                raise ValueError("a view of the wrong size")
        entries = [Entry(t.name, t.shape, t.type) for t in file.tensors.values()]
        plan = layout(list(file.keys.values()), entries)
        again = Gguf(Path("y.gguf"), memoryview(plan.header + bytes(plan.size - len(plan.header))), plan.size)
        if (
            list(again.keys) != list(file.keys)
            or [Entry(t.name, t.shape, t.type) for t in again.tensors.values()] != entries
        ):
            raise ValueError("a file that does not write and read alike")

    return read

"""Write a GGUF from keys and (name, shape, type, bytes) tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash_convert.container.types import KV, TensorType
from dflash_convert.container.writer import Entry, GgufOutput, layout


def write_gguf(
    path: Path, keys: Sequence[KV], tensors: Sequence[tuple[str, tuple[int, ...], TensorType, bytes]]
) -> None:
    entries = [Entry(name, shape, kind) for name, shape, kind, _ in tensors]
    with GgufOutput(path, entries, layout(keys, entries)) as output:
        for name, _, _, data in tensors:
            output.write_at(output.offset(name), data)
        output.commit()

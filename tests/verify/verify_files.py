"""Rewrite a GGUF with other keys or tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType
from dflash_convert.container.writer import Entry, GgufOutput, layout

Tensors = dict[str, tuple[tuple[int, ...], TensorType, bytes]]
Keys = dict[str, KV]


def rewrite(source: Path, path: Path, change: Callable[[Keys, Tensors], None]) -> Path:
    """Copy ``source`` to ``path`` after ``change`` has edited its keys and tensors in place."""
    gguf = open_gguf(source)
    keys = dict(gguf.keys)
    tensors: Tensors = {t.name: (t.shape, t.type, gguf.data(t.name).tobytes()) for t in gguf.tensors.values()}
    change(keys, tensors)
    entries = [Entry(name, shape, kind) for name, (shape, kind, _) in tensors.items()]
    with GgufOutput(path, entries, layout(list(keys.values()), entries), force=True) as output:
        for name, (_, _, data) in tensors.items():
            output.write_at(output.offset(name), data)
        output.commit()
    return path

"""Where the trained pair is found, and its files changed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, TensorType
from dflash_convert.container.writer import Entry, GgufOutput, layout

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PAIR = FIXTURES / "tiny-js"
TARGET = PAIR / "target-bf16.gguf"
Run = Callable[..., tuple[int, str, str]]
Make = Callable[..., tuple[Path, Path, Path]]
Tensor = tuple[tuple[int, ...], TensorType, bytes]


def rewritten(
    gguf: Gguf,
    place: Path,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, Tensor | None] | None = None,
    *,
    only: Collection[str] | None = None,
    all_keys: list[KV] | None = None,
) -> Path:
    """The file with other values of some keys and other tensors (None leaves one out), ``only`` some of its tensors, or
    ``all_keys`` anew."""
    values, changed = keys or {}, tensors or {}
    stored = [KV(kv.name, kv.type, values.get(kv.name, kv.value), kv.item) for kv in gguf.keys.values()]
    stored = stored if all_keys is None else all_keys
    kept = {t.name: (t.shape, t.type, gguf.data(t.name).tobytes()) for t in gguf.tensors.values()}
    found = {name: tensor for name, tensor in (kept | changed).items() if tensor is not None}
    found = {name: tensor for name, tensor in found.items() if only is None or name in only}
    entries = [Entry(name, shape, kind) for name, (shape, kind, _) in found.items()]
    with GgufOutput(place, entries, layout(stored, entries)) as output:
        for name, (_, _, data) in found.items():
            output.write_at(output.offset(name), data)
        output.commit()
    return place

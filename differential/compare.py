"""Two GGUFs as a list of short differences, each with what it is about in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV
from dflash_convert.text import shorten


def differences(ours: Path, theirs: Path) -> list[str]:
    """``key NAME: …`` and ``tensor NAME: …``, ``order of keys`` and ``order of tensors``; [] for equal bytes."""
    if ours.read_bytes() == theirs.read_bytes():
        return []
    a, b = open_gguf(ours), open_gguf(theirs)
    found = [*_keys(a, b), *_tensors(a, b)]
    return found or ["bytes differ, keys and tensors do not"]


def _keys(a: Gguf, b: Gguf) -> list[str]:
    found = []
    for name in dict.fromkeys((*a.keys, *b.keys)):
        mine, its = a.keys.get(name), b.keys.get(name)
        if _told(mine) != _told(its):
            found.append(f"key {name}: {_shown(mine, its)} instead of {_shown(its, mine)}")
    mine_order = [name for name in a.keys if name in b.keys]
    if mine_order != [name for name in b.keys if name in a.keys]:
        found.append("order of keys")
    return found


def _told(kv: KV | None) -> Any:
    if kv is None:
        return None
    return (kv.type, kv.item, list(kv.value) if kv.item is not None else kv.value)


def _shown(kv: KV | None, other: KV | None) -> str:
    if kv is None:
        return "nothing"
    if kv.item is None:
        return f"{kv.type.name} {shorten(repr(kv.value), 60)}"
    values = list(kv.value)
    if other is not None and other.item is not None and len(values) > 8:
        at = next((i for i, (x, y) in enumerate(zip(values, other.value, strict=False)) if x != y), None)
        if at is not None:
            return f"[{at}] = {values[at]!r}"
    return f"{kv.item.name} {values[:8]}{f' of {len(values)}' if len(values) > 8 else ''}"


def _apart(a: Gguf, b: Gguf, name: str) -> str:
    """How far float32 values lie apart."""
    if a.tensors[name].type.name != "F32":
        return ""
    mine, its = (each.data(name).reshape(-1).view("<f4").astype(np.float64) for each in (a, b))
    return f", at most {np.max(np.abs(mine - its) / np.maximum(np.abs(its), 1e-30)):.0e} apart"


def _tensors(a: Gguf, b: Gguf) -> list[str]:
    found = []
    for name in dict.fromkeys((*a.tensors, *b.tensors)):
        mine, its = a.tensors.get(name), b.tensors.get(name)
        if mine is None or its is None:
            found.append(f"tensor {name}: only in {'theirs' if mine is None else 'ours'}")
        elif (mine.shape, mine.type) != (its.shape, its.type):
            found.append(f"tensor {name}: {mine.type.name} {mine.shape} instead of {its.type.name} {its.shape}")
        elif a.data(name).tobytes() != b.data(name).tobytes():
            found.append(f"tensor {name}: other values{_apart(a, b, name)}")
    if [name for name in a.tensors if name in b.tensors] != [name for name in b.tensors if name in a.tensors]:
        found.append("order of tensors")
    return found

"""Whether two files hold the same drafter, one of them with fewer rows of a head."""

from __future__ import annotations

from typing import Any

from dflash_convert.container.reader import Gguf
from dflash_convert.head.build import NAMES, PREFIX

ROWS = f"{PREFIX}rows"


def rows_of(gguf: Gguf) -> int | None:
    """Of a head that was made here; None for a file that has none."""
    rows = gguf.get(ROWS)
    return rows if isinstance(rows, int) else None


def reduced_from(pruned: Gguf, other: Gguf) -> bool:
    """By provenance: ``head`` changes the name, its own keys and the tensors that go with a head, and nothing else."""
    own, its = rows_of(pruned), rows_of(other)
    fewer = own is not None and (its is None or own < its)
    return fewer and _rest(pruned) == _rest(other)


def _rest(gguf: Gguf) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys and tensors without those that a head changes. Arrays are compared by kind and length: the vocabulary's
    are the only long ones, and the same target's by the other keys."""
    keys = {
        name: kv.value if kv.item is None else (kv.item, len(kv.value))
        for name, kv in gguf.keys.items()
        if name != "general.name" and not name.startswith(PREFIX)
    }
    return keys, {name: (t.shape, t.type) for name, t in gguf.tensors.items() if name not in NAMES}

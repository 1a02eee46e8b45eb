"""What a file says of its own head: how many rows, whose, and by what ranking they were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, ValueType, array, f32, string, u32
from dflash_convert.llama import MARKOV_W2
from dflash_convert.tables import EMBEDDINGS, HEAD

MAP = "d2t"
NAMES = frozenset((HEAD, MAP, EMBEDDINGS, MARKOV_W2))  # tensors that a head of its own changes
PREFIX = "dflash_convert.head."
OWN = "own"


@dataclass(frozen=True)
class Provenance:
    """``source`` names the target that the rows are copies of, or is OWN for the drafter's own; ``matrix_sha256`` is
    that of all the target's rows. ``ranking`` says what ranked them, None for a whole head; ``coverage`` is the share
    of held-out tokens that have a row, and ``kinds`` the same for each kind of text (both from 0 to 1)."""

    rows: int
    source: str
    matrix_sha256: str | None = None
    ranking: str | None = None
    ranking_sha256: str | None = None
    coverage: float | None = None
    kinds: dict[str, float] = field(default_factory=dict)

    def keys(self) -> list[KV]:
        found = [u32(f"{PREFIX}rows", self.rows)]
        for name in ("source", "matrix_sha256", "ranking", "ranking_sha256"):
            if (value := getattr(self, name)) is not None:
                found.append(string(PREFIX + name, value))
        if self.coverage is not None:
            found.append(f32(f"{PREFIX}coverage", self.coverage))
            found.append(array(f"{PREFIX}kinds", ValueType.STRING, list(self.kinds)))
            found.append(array(f"{PREFIX}kinds_coverage", ValueType.FLOAT32, list(self.kinds.values())))
        return found


class Keyed(Protocol):
    """A file, or one that is planned."""

    def get(self, name: str) -> Any:
        """A key's value; None without it."""


def provenance(gguf: Keyed) -> Provenance | None:
    """None for a file whose head was not made here; a key of another kind than is written counts as absent."""

    def read(name: str, kind: type) -> Any:
        value = gguf.get(PREFIX + name)
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    def items(name: str, kind: type) -> list[Any]:
        values = read(name, Sequence) or ()
        return [] if isinstance(values, str) else [value for value in values if isinstance(value, kind)]

    rows, source = read("rows", int), read("source", str)
    if rows is None or source is None:
        return None
    texts = {name: read(name, str) for name in ("matrix_sha256", "ranking", "ranking_sha256")}
    kinds = dict(zip(items("kinds", str), items("kinds_coverage", float), strict=False))
    return Provenance(rows, source, **texts, coverage=read("coverage", float), kinds=kinds)


def reduced_from(pruned: Gguf, other: Gguf) -> bool:
    """Whether both are one drafter, the first with fewer rows: ``head`` changes the name, its own keys and the tensors
    that go with a head, and nothing else."""
    own, its = provenance(pruned), provenance(other)
    fewer = own is not None and (its is None or own.rows < its.rows)
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

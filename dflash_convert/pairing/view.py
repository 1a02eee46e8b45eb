"""Drafter and target as the checks see them: the same facts, whether they come from a GGUF or a directory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.container.types import KV, TensorType, ValueType
from dflash_convert.errors import ContainerError
from dflash_convert.vocab.types import TokenType

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dflash_convert.pairing.weights import Tables

PADDING = re.compile(r"\[PAD\d+\]")
FORCED = "dflash_convert.forced_pair"  # the refusals that --force-pair overruled
MAX_BASES = 16  # base models whose names are compared
Shape = tuple[int, ...]
SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "pad": "padding_token_id",
}


@dataclass(frozen=True)
class Vocab:
    """A vocabulary; ``tokens`` None when the side brings none (a drafter directory takes the target's)."""

    model: str | None = None
    pre: str | None = None
    tokens: Sequence[str] | None = field(default=None, repr=False)
    types: Sequence[int] | None = field(default=None, repr=False)
    merges: Sequence[str] | None = field(default=None, repr=False)
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int | None:
        return None if self.tokens is None else len(self.tokens)

    def is_padding(self, index: int) -> bool:
        if self.types is not None and index < len(self.types) and self.types[index] == TokenType.UNUSED:
            return True
        return self.tokens is not None and PADDING.fullmatch(self.tokens[index]) is not None

    @cached_property
    def used(self) -> int | None:
        """Tokens without the padding at the end."""
        if self.tokens is None:
            return None
        count = len(self.tokens)
        while count and self.is_padding(count - 1):
            count -= 1
        return count


@dataclass(frozen=True)
class DrafterView:
    """``tensors`` maps GGUF names to shapes (the row last), ``types`` to types (of a GGUF only); ``config`` is
    config.json of a directory, whose ``vocab`` is that of its own tokenizer files, if it has any.

    ``rows``: the tokens it counts, padding among them.  ``depth``: layers of the target it was made for.  ``d2t``:
    target ids of the draft rows (int64), None without such a map.  ``problem`` says why a directory cannot be
    converted, ``remedy`` what would help; the keys then hold what config.json tells anyway.
    """

    path: Path
    is_gguf: bool
    architecture: str
    keys: Keys
    tensors: Mapping[str, Shape] = field(repr=False)
    vocab: Vocab
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    types: Mapping[str, TensorType] = field(default_factory=dict, repr=False)
    rows: int | None = None
    depth: int | None = None
    d2t: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    tables: Tables | None = field(default=None, repr=False, compare=False)
    problem: str | None = None
    remedy: str | None = None

    def own(self, name: str) -> str:
        """The full name of one of the architecture's keys."""
        return f"{self.architecture}.{name}"

    @property
    def row(self) -> llama.DrafterArchitecture | None:
        """What llama.cpp makes of the architecture; None for a fork's dialect and for what is no drafter."""
        return llama.drafter(self.architecture)

    @property
    def variant(self) -> llama.Variant | None:
        return None if self.row is None else self.row.variant(self.tensors)

    @property
    def spark(self) -> bool:
        return self.variant is not None and self.variant.anchored

    @cached_property
    def made_for(self) -> tuple[str, ...]:
        """Names of the target that the drafter itself gives."""
        forced = FORCED in self.keys  # then it was written for a target that is not its own
        found = [] if forced else [self.keys.text(f"dflash_convert.target.{part}") for part in ("name", "repository")]
        count = self.keys.integer("general.base_model.count") or MAX_BASES
        found += [self.keys.text(f"general.base_model.{i}.name") for i in range(min(count, MAX_BASES))]
        return tuple(dict.fromkeys(name for name in found if name))


@dataclass(frozen=True)
class TargetView:
    """``architecture`` is llama.cpp's string, None when a directory's class is not known here.

    ``layers`` excludes prediction layers (nextn); ``rows`` are the rows of the embedding table, ``context`` the
    positions it was trained for.  ``tables`` are its weights, where they are at hand.
    """

    path: Path
    is_gguf: bool
    architecture: str | None
    label: str
    hidden: int | None
    layers: int | None
    rows: int | None
    vocab: Vocab
    rope_bases: tuple[float, ...] = ()
    mrope: bool = False
    embedding_scale: float | None = None
    names: tuple[str, ...] = ()
    context: int | None = None
    tables: Tables | None = field(default=None, repr=False, compare=False)


UNKNOWN = TargetView(Path(), False, None, "", None, None, None, Vocab())  # a target that was not given


def vocab_from_keys(source: str, keys: Mapping[str, KV]) -> Vocab:
    """The ``tokenizer.ggml.*`` keys; a model of ``none`` or no tokens gives a Vocab without tokens."""
    plain = Keys(source, {name: kv.value for name, kv in keys.items() if name.startswith("tokenizer.")})
    model = plain.text("tokenizer.ggml.model")
    special = {kind: plain.integer(f"tokenizer.ggml.{name}") for kind, name in SPECIAL.items()}
    return Vocab(
        model=model,
        pre=plain.text("tokenizer.ggml.pre"),
        tokens=_array(source, keys, "tokenizer.ggml.tokens") or None,
        types=_array(source, keys, "tokenizer.ggml.token_type"),
        merges=_array(source, keys, "tokenizer.ggml.merges"),
        special={kind: value for kind, value in special.items() if value is not None},
    )


def _array(source: str, keys: Mapping[str, KV], name: str) -> Any:
    kv = keys.get(name)
    if kv is None:
        return None
    if kv.item is None:
        raise ContainerError(f"{source}: key {name} is not an array")
    if (kv.item is ValueType.STRING) is not name.endswith((".tokens", ".merges")):
        raise ContainerError(f"{source}: key {name} is an array of {kv.item.name}")
    return kv.value

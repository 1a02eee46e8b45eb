"""Drafter and target as the checks see them: the same facts, whether they come from a GGUF or a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_convert.container.types import KV, ValueType
from dflash_convert.errors import ContainerError

Shape = tuple[int, ...]
SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "eot": "eot_token_id",
    "eom": "eom_token_id",
    "pad": "padding_token_id",
}


@dataclass(frozen=True)
class Keys:
    """Metadata with typed access; a key of the wrong kind is a ContainerError, an absent one None."""

    source: str
    values: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def fail(self, name: str, wanted: str) -> ContainerError:
        return ContainerError(f"{self.source}: key {name} is {_short(self.values[name])}, expected {wanted}")

    def integer(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self.fail(name, "a whole number")
        return value

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise self.fail(name, "a number")
        return None if value is None else float(value)

    def boolean(self, name: str) -> bool | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def integers(self, name: str) -> list[int] | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.fail(name, "a list of whole numbers")
        items = list(value)
        if not all(isinstance(item, int) for item in items):
            raise self.fail(name, "a list of whole numbers")
        return items

    def first(self, name: str) -> int | None:
        """A whole number, or the largest of a per-layer list."""
        value = self.values.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = self.integers(name)
            return max(items) if items else None
        return self.integer(name)


@dataclass(frozen=True)
class Vocab:
    """A vocabulary; ``tokens`` None when the side brings none (a drafter directory takes the target's)."""

    model: str | None = None
    pre: str | None = None
    tokens: Sequence[str] | None = field(default=None, repr=False)
    types: Sequence[int] | None = field(default=None, repr=False)
    special: Mapping[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int | None:
        return None if self.tokens is None else len(self.tokens)


@dataclass(frozen=True)
class DrafterView:
    """``tensors`` maps GGUF names to shapes (the row last); ``config`` is config.json of a directory.

    ``problem`` says why a directory cannot be converted; the keys then hold what config.json tells anyway.
    """

    path: Path
    is_gguf: bool
    architecture: str
    keys: Keys
    tensors: Mapping[str, Shape] = field(repr=False)
    vocab: Vocab
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    d2t_last: int | None = None
    problem: str | None = None

    def own(self, name: str) -> str:
        """The full name of one of the architecture's keys."""
        return f"{self.architecture}.{name}"

    @property
    def spark(self) -> bool:
        return "markov_w1.weight" in self.tensors


@dataclass(frozen=True)
class TargetView:
    """``architecture`` is llama.cpp's string, None when a directory's class is not known here.

    ``layers`` excludes prediction layers (nextn); ``rows`` are the rows of the embedding table.
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
        special={kind: value for kind, value in special.items() if value is not None},
    )


def _array(source: str, keys: Mapping[str, KV], name: str) -> Any:
    kv = keys.get(name)
    if kv is None:
        return None
    if kv.item is None:
        raise ContainerError(f"{source}: key {name} is not an array")
    if (kv.item is ValueType.STRING) is not name.endswith(".tokens"):
        raise ContainerError(f"{source}: key {name} is an array of {kv.item.name}")
    return kv.value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

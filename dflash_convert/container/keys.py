"""Typed access to a GGUF's metadata, or to keys that are only planned: the same rules wherever a key is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dflash_convert.container.types import KV
from dflash_convert.errors import ContainerError
from dflash_convert.text import short

if TYPE_CHECKING:
    from dflash_convert.container.reader import Gguf

T = TypeVar("T")


@dataclass(frozen=True)
class Keys:
    """Metadata by name; a key of the wrong kind is a ContainerError that names ``source``, an absent one None.

    ``prefix`` is put before every name, for the keys of one architecture.
    """

    source: str
    values: Mapping[str, Any]
    prefix: str = ""

    @classmethod
    def of(cls, source: str, keys: Iterable[KV]) -> Keys:
        return cls(source, {kv.name: kv.value for kv in keys})

    def under(self, prefix: str) -> Keys:
        """The same keys, asked for without ``prefix.``"""
        return replace(self, prefix=f"{prefix}.")

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        return self.values.get(self.prefix + name)

    def fail(self, name: str, wanted: str, value: Any = None) -> ContainerError:
        value = self.value(name) if value is None else value
        found = "is missing" if value is None else f"is {short(value)}"
        return ContainerError(f"{self.source}: key {self.prefix}{name} {found}, expected {wanted}")

    def need(self, name: str, value: T | None, wanted: str) -> T:
        """``value``, which an absent key does not give."""
        if value is None:
            raise self.fail(name, wanted)
        return value

    def integer(self, name: str, *, low: int | None = None, high: int | None = None) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(name, "a whole number" if low is None else f"a whole number of at least {low}")
        if low is not None and value < low:
            raise self.fail(name, f"a whole number of at least {low}")
        if high is not None and value > high:
            raise self.fail(name, f"at most {high}")
        return value

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise self.fail(name, "a number")
        return None if value is None else float(value)

    def boolean(self, name: str) -> bool | None:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise self.fail(name, "a string")
        return value

    def items(self, name: str) -> list[Any] | None:
        """An array of any kind."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise self.fail(name, "an array")
        return list(value)

    def integers(self, name: str) -> list[int] | None:
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise self.fail(name, "a list of whole numbers")
        items = list(value)
        if not all(isinstance(item, int) for item in items):
            raise self.fail(name, "a list of whole numbers")
        return items

    def first(self, name: str) -> int | None:
        """A whole number, or the largest of a per-layer list."""
        if isinstance(self.value(name), Sequence) and not isinstance(self.value(name), str):
            return max(self.integers(name) or [], default=None)
        return self.integer(name)

    def per_layer(self, name: str, count: int) -> list[int] | None:
        """One value a layer: a number for all of them, or a list of at least ``count``."""
        if not isinstance(self.value(name), Sequence) or isinstance(self.value(name), str):
            single = self.integer(name, low=0)
            return None if single is None else [single] * count
        items = self.integers(name) or []
        if any(item < 0 for item in items):
            raise self.fail(name, "whole numbers of at least 0")
        if len(items) < count:
            raise self.fail(name, f"{count} values, one a layer", items)
        return items


def keys_of(gguf: Gguf) -> Keys:
    """A file's keys, named after it in errors."""
    return Keys.of(gguf.path.name, gguf.keys.values())

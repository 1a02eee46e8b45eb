"""config.json -> typed values: no field is read twice in two ways, none is defaulted silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from dflash_convert.errors import ConfigError
from dflash_convert.llama_tables import MAX_LAYERS
from dflash_convert.text import shorten

T = TypeVar("T")
# what public configs call the language model inside a multimodal or wrapped model; llama.cpp's converter reads most
TEXT_CONFIGS = (
    "text_config",
    "llm_config",
    "lm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
    "language_model",
    "text_model",
    "text_model_config",
    "llm",
    "lfm",
)
U32_MAX = (1 << 32) - 1
F32_MAX = 3.4028234e38


class Config:
    """A config object with typed access; errors name the file and the field.

    ``fields`` is the flattened object (:func:`text_config` and ``transformer_layer_config`` over the top level),
    ``nested`` its ``dflash_config``.  Getters return None for absent or null fields.
    """

    def __init__(self, raw: Mapping[str, Any], file: str = "config.json") -> None:
        self.raw = raw
        self.file = file
        self.fields: dict[str, Any] = {**raw, **text_config(raw)}
        if isinstance(raw.get("transformer_layer_config"), dict):
            self.fields.update(raw["transformer_layer_config"])
        nested = raw.get("dflash_config")
        if nested is not None and not isinstance(nested, dict):
            raise self.fail("dflash_config", nested, "an object")
        self.nested: dict[str, Any] = nested or {}

    def fail(self, name: str, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{self.file}: {name} is {shorten(repr(value))}, expected {wanted}")

    def missing(self, *names: str, tip: str | None = None) -> ConfigError:
        return ConfigError(f"{self.file}: {' or '.join(names)} is missing", tip=tip)

    def raw_value(self, *names: str) -> tuple[str, Any]:
        """The first name with a value, looked up as ``dflash_config.x`` in the nested object."""
        for name in names:
            inner = name.removeprefix("dflash_config.")
            value = (self.fields if inner == name else self.nested).get(inner)
            if value is not None:
                return name, value
        return names[0], None

    def integer(self, *names: str, low: int = 0, high: int = U32_MAX) -> int | None:
        name, value = self.raw_value(*names)
        if value is None:
            return None
        if name == "num_hidden_layers":
            high = min(high, MAX_LAYERS)  # lists are made of it, so it is bounded before any is
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            limit = f"of at least {low}" if high == U32_MAX else f"from {low} to {high}"
            raise self.fail(name, value, f"a whole number {limit}")
        return value

    def number(self, *names: str, low: float = -F32_MAX, high: float = F32_MAX) -> float | None:
        name, value = self.raw_value(*names)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.fail(name, value, "a number")
        if not low <= value <= high:
            bounded = (low, high) != (-F32_MAX, F32_MAX)
            raise self.fail(name, value, f"a number from {low:g} to {high:g}" if bounded else "a float32 number")
        return float(value)

    def boolean(self, *names: str) -> bool | None:
        name, value = self.raw_value(*names)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, value, "true or false")
        return value

    def text(self, *names: str) -> str | None:
        name, value = self.raw_value(*names)
        if value is not None and not isinstance(value, str):
            raise self.fail(name, value, "a string")
        return value

    def integers(self, *names: str) -> list[int] | None:
        name, value = self.raw_value(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise self.fail(name, value, "a list of whole numbers")
        return list(value)

    def strings(self, *names: str) -> list[str] | None:
        name, value = self.raw_value(*names)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self.fail(name, value, "a list of strings")
        return list(value)

    def table(self, *names: str) -> dict[str, Any] | None:
        name, value = self.raw_value(*names)
        if value is not None and not isinstance(value, dict):
            raise self.fail(name, value, "an object")
        return value

    def need(self, value: T | None, *names: str, tip: str | None = None) -> T:
        if value is None:
            raise self.missing(*names, tip=tip)
        return value


def text_config(raw: Mapping[str, Any], depth: int = 4) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model of a multimodal or wrapped model, else nothing."""
    for name in TEXT_CONFIGS:
        inner = raw.get(name)
        if isinstance(inner, dict) and inner:
            return (text_config(inner, depth - 1) if depth else {}) or inner
    return {}


def classes(raw: Mapping[str, Any]) -> list[str]:
    """A target's class names: its own, then that of the language model inside."""
    return [*architectures(raw), *architectures(text_config(raw))]


def architectures(raw: Mapping[str, Any]) -> list[str]:
    value = raw.get("architectures")
    if not isinstance(value, list):
        return []
    return [name for name in value if isinstance(name, str)]

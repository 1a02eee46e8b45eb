"""config.json -> typed values: no field is read twice in two ways, none is defaulted silently."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dflash_convert.errors import ConfigError
from dflash_convert.llama_tables import MAX_LAYERS
from dflash_convert.notes import Note

T = TypeVar("T")
U32_MAX = (1 << 32) - 1
F32_MAX = 3.4028234e38


class Config:
    """A config object with typed access; errors name the file and the field.

    ``fields`` is the flattened object (nested ``text_config`` or ``transformer_layer_config`` over the top
    level), ``nested`` its ``dflash_config``.  Getters return None for absent or null fields.
    """

    def __init__(self, raw: Mapping[str, Any], file: str = "config.json") -> None:
        self.raw = raw
        self.file = file
        self.fields: dict[str, Any] = dict(raw)
        for inner in ("text_config", "transformer_layer_config"):
            if isinstance(raw.get(inner), dict):
                self.fields.update(raw[inner])
        nested = raw.get("dflash_config")
        if nested is not None and not isinstance(nested, dict):
            raise self.fail("dflash_config", nested, "an object")
        self.nested: dict[str, Any] = nested or {}

    def fail(self, name: str, value: Any, wanted: str) -> ConfigError:
        return ConfigError(f"{self.file}: {name} is {_short(value)}, expected {wanted}")

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


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def architectures(raw: Mapping[str, Any]) -> list[str]:
    value = raw.get("architectures")
    if not isinstance(value, list):
        return []
    return [name for name in value if isinstance(name, str)]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the drafter; ``kind`` is none, linear, yarn, llama3 or proportional."""

    theta: float
    kind: str
    factor: float | None = None
    original_context: int | None = None
    ext_factor: float | None = None
    attn_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    partial: float | None = None
    theta_sliding: float | None = None


ROPE_KINDS = {None: "none", "default": "none", "none": "none"}
KNOWN_ROPE = ("none", "linear", "yarn", "llama3", "proportional")
THETA_TIP = "the drafter's own theta is needed: a wrong one only shows as low acceptance"


def read_rope(config: Config) -> tuple[Rope, list[Note]]:
    """Rope from rope_parameters, else rope_scaling, with theta from there, else the top level.

    A theta that stands in two places with two values is reported; none at all is a ConfigError, as is a rope
    type the runtime cannot express for a drafter.
    """
    notes: list[Note] = []
    name, table = _rope_table(config)
    inner = Config(table, f"{config.file}: {name}")
    source = Config({**table, **(inner.table("full_attention") or {})}, inner.file)
    theta, top = source.number("rope_theta"), config.number("rope_theta", "global_rope_theta", "rotary_emb_base")
    if theta is not None and top is not None and theta != top:
        notes.append(
            Note("warning", f"rope_theta is {theta:g} in {name} and {top:g} at the top level; {theta:g} counts")
        )
    if theta is None:
        theta = top
    if theta is None:
        raise config.missing("rope_theta", tip=THETA_TIP)
    if theta <= 0:
        raise config.fail("rope_theta", theta, "a positive number")
    kind = _rope_kind(source)
    partial = source.number("partial_rotary_factor")
    if partial is None:
        partial = config.number("partial_rotary_factor", "rope_pct")
    local = Config(inner.table("sliding_attention") or {}, f"{inner.file}.sliding_attention")
    rope = Rope(
        theta=theta,
        kind=kind,
        factor=source.number("factor"),
        original_context=source.integer("original_max_position_embeddings")
        or config.integer("original_max_position_embeddings"),
        ext_factor=source.number("extrapolation_factor"),
        attn_factor=source.number("attention_factor", "attn_factor"),
        beta_fast=source.number("beta_fast"),
        beta_slow=source.number("beta_slow"),
        low_freq_factor=source.number("low_freq_factor"),
        high_freq_factor=source.number("high_freq_factor"),
        partial=partial,
        theta_sliding=local.number("rope_theta") or config.number("rope_local_base_freq", "local_rope_theta"),
    )
    _check_rope(source, rope)
    return rope, notes


def _rope_table(config: Config) -> tuple[str, dict[str, Any]]:
    for name in ("rope_parameters", "rope_scaling"):
        table = config.table(name)
        if table:
            return name, table
    return "rope_parameters", {}


def _rope_kind(source: Config) -> str:
    found = source.text("rope_type", "type")
    kind = ROPE_KINDS.get(found, found or "none").lower()
    if kind not in KNOWN_ROPE:
        raise source.fail("rope_type", found, f"one that llama.cpp can run for a drafter: {', '.join(KNOWN_ROPE)}")
    return kind


def _check_rope(source: Config, rope: Rope) -> None:
    if rope.kind in ("linear", "yarn", "llama3"):
        source.need(rope.factor, "factor")
    if rope.kind in ("yarn", "llama3"):
        source.need(rope.original_context, "original_max_position_embeddings")
    if rope.kind == "llama3":
        source.need(rope.low_freq_factor, "low_freq_factor")
        source.need(rope.high_freq_factor, "high_freq_factor")
    for name in ("factor", "low_freq_factor", "high_freq_factor"):
        value = getattr(rope, name)
        if value is not None and value <= 0:
            raise source.fail(name, value, "a positive number")
    if rope.low_freq_factor and rope.high_freq_factor and rope.low_freq_factor >= rope.high_freq_factor:
        raise source.fail(
            "low_freq_factor", rope.low_freq_factor, f"less than high_freq_factor {rope.high_freq_factor}"
        )
    if rope.partial is not None and not 0 < rope.partial <= 1:
        raise source.fail("partial_rotary_factor", rope.partial, "a share between 0 and 1")


def llama3_frequency_factors(rope: Rope, dim: int) -> list[float]:
    """Divisors of the rotary frequencies for llama3 scaling, float32 [dim / 2] in the end.

    Rule of the Llama 3.1 release: long wavelengths are divided by the factor, short ones are kept, those
    between are blended.
    """
    factor, context = rope.factor or 1.0, rope.original_context or 1
    low, high = rope.low_freq_factor or 1.0, rope.high_freq_factor or 4.0
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope.theta ** (i / dim)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors

"""Hyper-parameters of the reference forwards, read from GGUF keys with llama.cpp's own defaults (b11434)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.errors import ContainerError, FamilyError
from dflash_convert.forward.ops import Rope

Keys = Mapping[str, Any]

DEFAULT_BLOCK_SIZE = 16  # what the runtime takes when the key is absent


@dataclass(frozen=True, slots=True)
class DrafterHyper:
    """A ``dflash`` drafter in GGUF terms; 0 means "not set" where the runtime means it so.

    ``target_layers`` are layer inputs of the target; ``windowed`` says per layer whether it sees only the
    last ``window`` positions; ``attention_scale`` 0 is 1/sqrt(head_dim).
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope
    target_layers: tuple[int, ...]
    block_size: int = DEFAULT_BLOCK_SIZE
    mask_token: int = -1
    causal: bool = False
    activation: str = "silu"
    window: int = 0
    windowed: tuple[bool, ...] = ()
    attention_scale: float = 0.0
    value_scale: float = 0.0
    embedding_scale: float = 0.0
    logit_scale: float = 0.0
    softcap: float = 0.0
    conv_kernel: int = 0
    conv_group: int = 0
    selector_top_k: int = 0
    sample_from_anchor: bool = True


@dataclass(frozen=True, slots=True)
class TargetHyper:
    """A dense Qwen3-type target."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: Rope


class _Reader:
    """Typed access to ``arch.*`` keys; what is missing or of another type is named."""

    def __init__(self, keys: Keys, arch: str, source: str) -> None:
        self._keys, self._arch, self._source = keys, arch, source

    def number(self, name: str, default: float | None = None) -> float:
        value = self._keys.get(f"{self._arch}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, value, "a number")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """As float32 holds it, so that a checkpoint's value equals the file's."""
        return float(np.float32(self.number(name, default)))

    def integer(self, name: str, default: int | None = None, least: int = 0) -> int:
        value = self.number(name, default)
        if value != int(value) or value < least:
            raise self.error(name, value, f"an integer of at least {least}")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._keys.get(f"{self._arch}.{name}", default)
        if not isinstance(value, bool):
            raise self.error(name, value, "a bool")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._keys.get(f"{self._arch}.{name}", default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def items(self, name: str) -> tuple[Any, ...] | None:
        value = self._keys.get(f"{self._arch}.{name}")
        if value is None:
            return None
        if isinstance(value, (str, bytes, int, float)):
            raise self.error(name, value, "an array")
        return tuple(value)

    def error(self, name: str, value: Any, wanted: str) -> ContainerError:
        found = "is missing" if value is None else f"is {value!r}"
        return ContainerError(f"{self._source}: key {self._arch}.{name} {found}, the forward pass needs {wanted}")


def _rope(read: _Reader, head_dim: int) -> Rope:
    # the runtime reads no beta keys for these architectures, see ops.YARN_BETA_*
    kind = read.text("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise FamilyError(f"rope.scaling.type {kind!r} is not supported by the reference forward")
    dims = read.integer("rope.dimension_count", head_dim, 2)
    if dims % 2 or dims > head_dim:
        raise read.error("rope.dimension_count", dims, f"an even number up to the head size {head_dim}")
    return Rope(
        base=read.real("rope.freq_base", 10000.0),
        dims=dims,
        kind=kind,
        factor=read.real("rope.scaling.factor", 1.0) or 1.0,
        original_context=_original_context(read) if kind == "yarn" else 0,
        attn_factor=read.real("rope.scaling.attn_factor", 1.0),
        sections=tuple(int(s) for s in read.items("rope.dimension_sections") or ()),
    )


def _original_context(read: _Reader) -> int:
    """The runtime takes the trained context where the key is absent."""
    return read.integer("rope.scaling.original_context_length", 0) or read.integer("context_length", least=1)


def _shape(read: _Reader) -> dict[str, Any]:
    hidden, heads = read.integer("embedding_length", least=1), read.integer("attention.head_count", least=1)
    head_dim = read.integer("attention.key_length", hidden // heads, 2)
    kv_heads = read.integer("attention.head_count_kv", heads, 1)
    if read.integer("attention.value_length", head_dim) != head_dim:
        raise read.error("attention.value_length", read.integer("attention.value_length"), f"the key length {head_dim}")
    if heads % kv_heads:
        raise read.error("attention.head_count_kv", kv_heads, f"a divisor of the {heads} heads")
    return {
        "layers": read.integer("block_count", least=1),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": read.real("attention.layer_norm_rms_epsilon"),
        "rope": _rope(read, head_dim),
    }


def target_hyper(keys: Keys, source: str = "target") -> TargetHyper:
    """From the keys of a ``qwen3`` GGUF; FamilyError for another architecture, ContainerError for a bad key."""
    arch = keys.get("general.architecture")
    if arch != "qwen3":
        raise FamilyError(
            f"{source}: the reference forward knows qwen3 targets, not {arch!r}",
            tip="use validate with llama.cpp for other targets",
        )
    return TargetHyper(**_shape(_Reader(keys, "qwen3", source)))


def drafter_hyper(keys: Keys, source: str = "drafter") -> DrafterHyper:
    """From the keys of a ``dflash`` GGUF, or of a plan; FamilyError for another architecture or backbone."""
    arch = keys.get("general.architecture")
    if arch != "dflash":
        raise FamilyError(f"{source}: the reference forward knows dflash drafters, not {arch!r}")
    if keys.get("dflash.hyper_connection.count"):
        raise FamilyError(f"{source}: DeepSeek-V4 stages (hyper connections, experts) have no reference forward")
    read = _Reader(keys, "dflash", source)
    shape = _shape(read)
    taps = read.items("target_layers")
    if not taps:
        raise read.error("target_layers", None, "the tapped layers")
    window, windowed = _window(read, shape["layers"])
    activation = read.text("hidden_activation", "silu")
    if activation not in ("silu", "gelu", "gelu_pytorch_tanh"):
        raise FamilyError(
            f"{source}: activation {activation!r} is unknown to the runtime", tip="it knows silu and gelu"
        )
    mask = keys.get("tokenizer.ggml.mask_token_id")
    return DrafterHyper(
        **shape,
        target_layers=tuple(int(t) for t in taps),
        block_size=read.integer("block_size", DEFAULT_BLOCK_SIZE, 1),
        mask_token=-1 if mask is None else int(mask),
        causal=read.flag("attention.causal", False),
        activation=activation,
        window=window,
        windowed=windowed,
        attention_scale=read.real("attention.scale", 0.0),
        value_scale=read.real("attention.value_scale", 0.0),
        embedding_scale=read.real("embedding_scale", 0.0),
        logit_scale=read.real("logit_scale", 0.0),
        softcap=read.real("final_logit_softcapping", 0.0),
        conv_kernel=read.integer("conv_kernel_size", 0),
        conv_group=read.integer("conv_group_size", 0),
        selector_top_k=read.integer("selector_top_k", 0),
        sample_from_anchor=read.flag("sample_from_anchor", True),
    )


def _window(read: _Reader, layers: int) -> tuple[int, tuple[bool, ...]]:
    window = read.integer("attention.sliding_window", 0)
    if not window:
        return 0, (False,) * layers
    pattern = read.items("attention.sliding_window_pattern")
    if pattern is None or len(pattern) != layers:
        raise read.error("attention.sliding_window_pattern", pattern, f"{layers} flags beside a sliding window")
    return window, tuple(bool(p) for p in pattern)

"""Hyper-parameters of the reference forwards, read from GGUF keys with llama.cpp's own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.container.keys import Keys
from dflash_convert.errors import FamilyError
from dflash_convert.forward.ops import Rope
from dflash_convert.llama import ACTIVATIONS, DEFAULT_BLOCK, DFLASH


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
    block_size: int = DEFAULT_BLOCK
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


TARGET = "qwen3"


def _real(read: Keys, name: str, default: float = 0.0) -> float:
    """As float32 holds it, so that a checkpoint's value equals the file's."""
    value = read.number(name)
    return float(np.float32(default if value is None else value))


def _integer(read: Keys, name: str, default: int | None = None, least: int = 0) -> int:
    value = read.integer(name, low=least)
    return read.need(name, default if value is None else value, f"a whole number of at least {least}")


def _rope(read: Keys, head_dim: int) -> Rope:
    # the runtime reads no beta keys for these architectures, see ops.YARN_BETA_*
    kind = read.text("rope.scaling.type") or "none"
    if kind not in ("none", "linear", "yarn"):
        raise FamilyError(f"rope.scaling.type {kind!r} is not supported by the reference forward")
    dims = _integer(read, "rope.dimension_count", head_dim, 2)
    if dims % 2 or dims > head_dim:
        raise read.fail("rope.dimension_count", f"an even number up to the head size {head_dim}")
    return Rope(
        base=_real(read, "rope.freq_base", 10000.0),
        dims=dims,
        kind=kind,
        factor=_real(read, "rope.scaling.factor", 1.0) or 1.0,
        original_context=_original_context(read) if kind == "yarn" else 0,
        attn_factor=_real(read, "rope.scaling.attn_factor", 1.0),
        sections=tuple(read.integers("rope.dimension_sections") or ()),
    )


def _original_context(read: Keys) -> int:
    """The runtime takes the trained context where the key is absent."""
    return read.integer("rope.scaling.original_context_length", low=0) or _integer(read, "context_length", least=1)


def _shape(read: Keys) -> dict[str, Any]:
    hidden, heads = _integer(read, "embedding_length", least=1), _integer(read, "attention.head_count", least=1)
    head_dim = _integer(read, "attention.key_length", hidden // heads, 2)
    kv_heads = _integer(read, "attention.head_count_kv", heads, 1)
    if _integer(read, "attention.value_length", head_dim) != head_dim:
        raise read.fail("attention.value_length", f"the key length {head_dim}")
    if heads % kv_heads:
        raise read.fail("attention.head_count_kv", f"a divisor of the {heads} heads")
    return {
        "layers": _integer(read, "block_count", least=1),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": float(
            np.float32(
                read.need(
                    "attention.layer_norm_rms_epsilon", read.number("attention.layer_norm_rms_epsilon"), "a number"
                )
            )
        ),
        "rope": _rope(read, head_dim),
    }


def target_hyper(keys: Mapping[str, Any], source: str = "target") -> TargetHyper:
    """From the keys of a ``qwen3`` GGUF; FamilyError for another architecture, ContainerError for a bad key."""
    arch = keys.get("general.architecture")
    if arch != TARGET:
        raise FamilyError(
            f"{source}: the reference forward knows {TARGET} targets, not {arch!r}",
            tip="use validate with llama.cpp for other targets",
        )
    return TargetHyper(**_shape(Keys(source, keys, f"{TARGET}.")))


def drafter_hyper(keys: Mapping[str, Any], source: str = "drafter") -> DrafterHyper:
    """From the keys of a ``dflash`` GGUF, or of a plan; FamilyError for another architecture or backbone."""
    arch = keys.get("general.architecture")
    if arch != DFLASH.name:
        raise FamilyError(f"{source}: the reference forward knows {DFLASH.name} drafters, not {arch!r}")
    read = Keys(source, keys).under(DFLASH.name)
    if read.integer("hyper_connection.count"):
        raise FamilyError(f"{source}: DeepSeek-V4 stages (hyper connections, experts) have no reference forward")
    shape = _shape(read)
    taps = read.need("target_layers", read.integers("target_layers") or None, "the tapped layers")
    window, windowed = _window(read, shape["layers"])
    activation = read.text("hidden_activation") or "silu"
    if activation not in ACTIVATIONS:
        raise FamilyError(
            f"{source}: activation {activation!r} is unknown to the runtime", tip="it knows silu and gelu"
        )
    mask = Keys(source, keys).integer("tokenizer.ggml.mask_token_id")
    return DrafterHyper(
        **shape,
        target_layers=tuple(taps),
        block_size=_integer(read, "block_size", DEFAULT_BLOCK, 1),
        mask_token=-1 if mask is None else mask,
        causal=read.boolean("attention.causal") or False,
        activation=activation,
        window=window,
        windowed=windowed,
        attention_scale=_real(read, "attention.scale"),
        value_scale=_real(read, "attention.value_scale"),
        embedding_scale=_real(read, "embedding_scale"),
        logit_scale=_real(read, "logit_scale"),
        softcap=_real(read, "final_logit_softcapping"),
        conv_kernel=_integer(read, "conv_kernel_size", 0),
        conv_group=_integer(read, "conv_group_size", 0),
        selector_top_k=_integer(read, "selector_top_k", 0),
        sample_from_anchor=read.boolean("sample_from_anchor") is not False,
    )


def _window(read: Keys, layers: int) -> tuple[int, tuple[bool, ...]]:
    window = _integer(read, "attention.sliding_window", 0)
    if not window:
        return 0, (False,) * layers
    pattern = read.items("attention.sliding_window_pattern")
    if pattern is None or len(pattern) != layers:
        raise read.fail("attention.sliding_window_pattern", f"{layers} flags beside a sliding window")
    return window, tuple(bool(p) for p in pattern)

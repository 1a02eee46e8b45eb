"""The rotary embedding in a file: keys, divisors of the frequencies, the order of the rows of q and k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_convert.container.types import KV, ValueType, array, f32, string, u32
from dflash_convert.drafter import Overrides, TensorPlan
from dflash_convert.errors import ConfigError, FamilyError
from dflash_convert.families.backbone import ARCH, Sizes
from dflash_convert.hparams import Config
from dflash_convert.notes import Note
from dflash_convert.rope import GLOBAL_SHARE, Rope, frequency_factors, magnitude, proportional_factors

NEOX = (
    "dflash_config.rope_is_neox_style",
    "rope_is_neox_style",
    "dflash_config.is_neox_style",
    "is_neox_style",
)


def interleaved(config: Config, overrides: Overrides) -> bool:
    """Whether the checkpoint rotates neighbours (``norm``) instead of the two halves of a head (``neox``)."""
    stated = config.boolean(*NEOX)
    if overrides.rope_style is None:
        return stated is False
    return overrides.rope_style == "norm"


def rope_keys(rope: Rope, arch: str = ARCH, *, plain: bool = False, sections: Sequence[int] | None = None) -> list[KV]:
    """Scaling, ``sections`` (M-RoPE), the base, the base of sliding layers; llama3 and a YaRN of its own are a tensor.

    ``plain``: the keys that llama.cpp's converter writes, which the runtime does not all read.
    """
    keys: list[KV] = []
    scaled = rope.kind == "linear" or (rope.kind == "yarn" and (plain or not rope.own_yarn))
    if scaled:
        keys += [string(f"{arch}.rope.scaling.type", rope.kind), f32(f"{arch}.rope.scaling.factor", rope.factor)]
    if rope.kind == "yarn":
        keys += _yarn_keys(rope, arch, plain, scaled)
    if rope.sections or sections is not None:
        chosen = list(rope.sections if sections is None else sections)
        padded = [*chosen, 0, 0, 0, 0][:4]
        keys.append(array(f"{arch}.rope.dimension_sections", ValueType.INT32, padded))
    keys.append(f32(f"{arch}.rope.freq_base", rope.theta))
    if rope.sliding_theta is not None:
        keys.append(f32(f"{arch}.rope.freq_base_swa", rope.sliding_theta))
    return keys


def _yarn_keys(rope: Rope, arch: str, plain: bool, scaled: bool) -> list[KV]:
    keys: list[KV] = []
    if scaled:
        keys.append(u32(f"{arch}.rope.scaling.original_context_length", rope.original_context))
    own = {"ext_factor": rope.ext_factor, "attn_factor": rope.stated_attention if plain else None}
    own |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
    keys += [f32(f"{arch}.rope.scaling.yarn_{name}", v) for name, v in own.items() if scaled and v is not None]
    # the runtime multiplies by YaRN's own magnitude where the type says yarn, by nothing where it does not
    factor = attention_factor(rope, scaled)
    if not plain and factor != 1.0:
        keys.append(f32(f"{arch}.rope.scaling.attn_factor", factor))
    return keys


def attention_factor(rope: Rope, scaled: bool) -> float:
    """What ``rope.scaling.attn_factor`` must be, so that the rotated values have the config's magnitude."""
    own = magnitude(rope.factor)
    wanted = own if rope.attention is None else rope.attention
    return wanted / own if scaled else wanted


def rope_notes(rope: Rope, *, plain: bool, sliding: bool) -> list[Note]:
    """What of the config's rope reaches the runtime another way than llama.cpp's converter would, or not at all."""
    notes = []
    if rope.sliding_theta is not None and sliding and rope.sliding_theta != rope.theta:
        text = (
            f"the sliding layers were trained with rope base {rope.sliding_theta:g}; llama.cpp's dflash graph gives "
            f"them the main base {rope.theta:g}, whatever the file says: expect lower acceptance"
        )
        notes.append(Note("warning", text))
    lost = rope.own_yarn or attention_factor(rope, scaled=True) != 1.0
    if rope.kind == "yarn" and lost and plain:
        text = "YaRN's attention factor and betas stand under keys that llama.cpp never reads: leave --plain out"
        notes.append(Note("warning", text))
    elif rope.kind == "yarn" and rope.own_yarn:
        text = "YaRN with betas of its own: written as rope_freqs, llama.cpp reads no keys for them"
        notes.append(Note("derived", text))
    elif rope.kind == "yarn" and lost:
        text = f"YaRN's attention factor {rope.attention:g}: written as rope.scaling.attn_factor, the key that is read"
        notes.append(Note("derived", text))
    return notes


def rope_factors(rope: Rope, head_dim: int, rotated: int, size: int, *, plain: bool = False) -> list[TensorPlan]:
    """``rope_freqs`` [size] for what has no keys: llama3, proportional, and YaRN with values of its own."""
    if rope.kind == "proportional":
        values: list[float] | None = proportional_factors(head_dim, _share(rope, head_dim))
    else:
        values = None if plain and rope.kind == "yarn" else frequency_factors(rope, rotated, size)
    return [] if values is None else [constant_tensor(values)]


def constant_tensor(values: Sequence[float]) -> TensorPlan:
    import numpy as np

    stored = np.array(values, dtype=np.float32)
    return TensorPlan("rope_freqs.weight", stored.shape, transform="constant", constant=stored)


def _share(rope: Rope, head_dim: int) -> float:
    """The rotated share of a head under proportional rope."""
    share = GLOBAL_SHARE if rope.partial is None else rope.partial
    rotated = int(head_dim * share / 2)
    if rotated == 0 or head_dim * share != 2 * rotated:
        raise ConfigError(f"config.json: partial_rotary_factor {share} is not an even share of {head_dim}")
    return share


def rotated_dimensions(config: Config, rope: Rope, sizes: Sizes, chosen: int | None) -> int | None:
    """The rotary dimension count to write, None for the whole head."""
    if chosen is not None:
        if not 0 < chosen <= sizes.head_dim or chosen % 2:
            raise ConfigError(f"--rope-dimension-count {chosen} is not an even number up to head_dim {sizes.head_dim}")
        return chosen
    count = sizes.head_dim if rope.partial is None else int(sizes.head_dim * rope.partial)
    if rope.dims not in (None, count):
        raise config.fail("rope_dim", rope.dims, f"the {count} rotated dimensions that the other fields give")
    if rope.partial is None or rope.kind == "proportional":
        return None
    if count < 2 or count % 2:
        raise config.fail("partial_rotary_factor", rope.partial, f"an even share of head_dim {sizes.head_dim}")
    return count


def refuse_divisors(config: Config, rope: Rope) -> None:
    """FamilyError for a rope that needs divisors where the graph takes none: beside M-RoPE sections."""
    if rope.by_tensor:
        raise FamilyError(
            f"{config.file}: rope type {rope.kind} needs divisors of the frequencies, which llama.cpp's dflash graph "
            "does not apply for a target with M-RoPE"
        )


def uses_mrope(target: Config) -> bool:
    rope = target.table("rope_parameters") or target.table("rope_scaling") or {}
    return "mrope_section" in rope


def target_partial(target: Mapping[str, object]) -> float | None:
    """The target's own partial rotary factor, None when its config has none."""
    config = Config(target, "target config.json")
    rope = Config(config.table("rope_parameters", "rope_scaling") or {}, "target config.json: rope_parameters")
    partial = rope.number("partial_rotary_factor")
    return config.number("partial_rotary_factor") if partial is None else partial

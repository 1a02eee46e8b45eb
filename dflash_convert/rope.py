"""The drafter's rotary embedding: what config.json says of it, and what the pinned llama.cpp can run.

The runtime knows plain, linear and YaRN rope by keys, and any frequencies at all by a tensor of divisors
(``rope_freqs``).  Of YaRN it reads type, factor, original context and ``rope.scaling.attn_factor``; it never reads the
betas, the extrapolation factor and ``rope.scaling.yarn_attn_factor`` for a drafter (src/llama-model.cpp,
src/llama-context.cpp).  A YaRN with other values than its own becomes a tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dflash_convert.hparams import Config
from dflash_convert.notes import Note

# names of one fact, the first that is stated counts (llama.cpp's converter, transformers, vLLM)
THETAS = ("global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta", "rotary_emb_base")
SLIDING_THETAS = (
    "local_rope_theta",
    "rope_local_theta",
    "rope_theta_local",
    "swa_rope_theta",
    "rope_local_base_freq",
)
PARTIALS = ("partial_rotary_factor", "rope_pct", "rope_percent")
ORIGINAL = "original_max_position_embeddings"
# rope_type -> kind; mrope is plain rope for text, whose positions are equal in all sections
KINDS = {
    "default": "none",
    "none": "none",
    "mrope": "none",
    "dynamic": "none",
    "linear": "linear",
    "yarn": "yarn",
    "llama3": "llama3",
    "proportional": "proportional",
}
BETA_FAST, BETA_SLOW = 32.0, 1.0  # of YaRN's paper, transformers and llama.cpp
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_FACTOR = 1.0, 4.0, 8.0  # of the Llama 3.1 release
GLOBAL_SHARE = 0.25  # Gemma 4's rotated share of a full-attention head
UNROTATED = 1e30  # divides a frequency away
THETA_TIP = "the drafter's own theta is needed, a wrong one only shows as low acceptance: --rope-theta N gives it"


@dataclass(frozen=True)
class Rope:
    """``kind`` is none, linear, yarn, llama3 or proportional.

    ``attention`` is what the rotated values are multiplied by, None for the kind's own; ``stated_attention`` the
    config's word for it.  ``sections`` is the config's mrope_section, ``sliding_theta`` the base of its sliding layers,
    ``dims`` its rotated dimensions of a head.
    """

    theta: float
    kind: str = "none"
    factor: float = 1.0
    original_context: int = 1
    ext_factor: float | None = None
    stated_attention: float | None = None
    attention: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    low_freq_factor: float = LLAMA3_LOW
    high_freq_factor: float = LLAMA3_HIGH
    partial: float | None = None
    sliding_theta: float | None = None
    dims: int | None = None
    sections: tuple[int, ...] = ()

    @property
    def own_yarn(self) -> bool:
        """YaRN with values that the runtime replaces by its own."""
        stated = ((self.beta_fast, BETA_FAST), (self.beta_slow, BETA_SLOW), (self.ext_factor, 1.0))
        other = any(value not in (None, standard) for value, standard in stated)
        return self.kind == "yarn" and (other or not self.truncate)

    @property
    def by_tensor(self) -> bool:
        """Whether the frequencies need a ``rope_freqs`` tensor."""
        return self.kind in ("llama3", "proportional") or self.own_yarn


def read_rope(
    config: Config, *, theta: float | None = None, default_theta: float | None = None
) -> tuple[Rope, list[Note]]:
    """Rope from rope_scaling or rope_parameters, else the top level.

    ``theta`` overrules the config's, ``default_theta`` is that of the drafter's class.  Values that stand in two places
    and differ are reported; no theta at all is a ConfigError, as is a rope type that the runtime cannot express.
    """
    notes: list[Note] = []
    name, table = _table(config, notes)
    inner = Config(table, f"{config.file}: {name}")
    source = Config({**table, **(inner.table("full_attention") or {})}, inner.file)
    kind = _kind(source, notes)
    context = config.integer("max_position_embeddings", low=1)
    factor = _factor(config, source, kind, context, notes)
    rope = Rope(
        theta=_theta(config, source, name, theta, default_theta, notes),
        kind=kind,
        factor=factor,
        original_context=_original(config, source, kind, context, notes),
        ext_factor=source.number("extrapolation_factor"),
        stated_attention=source.number("attention_factor", "attn_factor"),
        attention=_attention(source, kind, factor, notes),
        beta_fast=source.number("beta_fast"),
        beta_slow=source.number("beta_slow"),
        truncate=source.boolean("truncate") is not False,
        low_freq_factor=_llama3(source, "low_freq_factor", LLAMA3_LOW, kind, notes),
        high_freq_factor=_llama3(source, "high_freq_factor", LLAMA3_HIGH, kind, notes),
        partial=_partial(config, source),
        sliding_theta=_sliding_theta(config, inner),
        dims=source.integer("rope_dim", low=1),
        sections=tuple(source.integers("mrope_section") or ())[:4],
    )
    _check(source, rope)
    return rope, notes


def _table(config: Config, notes: list[Note]) -> tuple[str, dict[str, Any]]:
    """The table that counts: rope_scaling where both are stated, as transformers reads such a config."""
    scaling, parameters = config.table("rope_scaling"), config.table("rope_parameters")
    if not scaling:
        return "rope_parameters", parameters or {}
    if not parameters:
        return "rope_scaling", scaling
    if any(_plain(scaling).get(name) != value for name, value in _plain(parameters).items() if name != "rope_theta"):
        notes.append(
            Note("warning", "rope_parameters and rope_scaling say different things; rope_scaling counts", True)
        )
    theta = {"rope_theta": parameters["rope_theta"]} if "rope_theta" in parameters else {}
    return "rope_scaling", {**theta, **scaling}


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    """One spelling of the type; absent means default."""
    kind = table.get("rope_type", table.get("type", "default"))
    return {**{k: v for k, v in table.items() if k != "type"}, "rope_type": kind}


def _theta(
    config: Config, source: Config, name: str, chosen: float | None, default: float | None, notes: list[Note]
) -> float:
    stated, top = source.number("rope_theta"), config.number(*THETAS)
    if stated is not None and top is not None and stated != top:
        text = f"rope_theta is {stated:g} in {name} and {top:g} at the top level; {stated:g} counts"
        notes.append(Note("warning", text, chosen is None))
    found = top if stated is None else stated
    if chosen is not None:
        found = chosen
    elif found is None and default is not None:
        notes.append(Note("derived", f"rope_theta {default:g}: config.json states none, it is the class's default"))
        found = default
    found = config.need(found, "rope_theta", tip=THETA_TIP)
    if found <= 0:
        raise config.fail("rope_theta", found, "a positive number")
    return found


def _kind(source: Config, notes: list[Note]) -> str:
    found = source.text("rope_type", "type")
    kind = KINDS.get((found or "default").lower())
    if kind is None or (found == "dynamic" and source.number("alpha") is not None):
        what = "dynamic with alpha" if kind else found
        known = ", ".join(sorted(name for name in KINDS if name != "none"))
        raise source.fail("rope_type", what, f"one that llama.cpp can run for a drafter: {known}")
    if found == "dynamic":
        text = "dynamic rope is plain rope up to the trained context; beyond it llama.cpp does not stretch it"
        notes.append(Note("info", text))
    return kind


def _original(config: Config, source: Config, kind: str, context: int | None, notes: list[Note]) -> int:
    """The context before scaling; transformers gives the top level priority and falls back to the context."""
    top, inner = config.integer(ORIGINAL, low=1), source.integer(ORIGINAL, low=1)
    if kind not in ("yarn", "llama3"):
        return inner or top or context or 1
    if top is not None and inner is not None and top != inner:
        text = f"{ORIGINAL} is {inner} in the rope table and {top} at the top level; {inner} counts"
        notes.append(Note("warning", text, True))
    if inner is None and top is None:
        context = source.need(context, ORIGINAL)
        text = f"{ORIGINAL} {context}: not stated, the class takes max_position_embeddings"
        notes.append(Note("derived", text))
        return context
    return inner or top or 1


def _factor(config: Config, source: Config, kind: str, context: int | None, notes: list[Note]) -> float:
    factor = source.number("factor")
    if factor is None and kind == "llama3":
        notes.append(Note("derived", f"factor {LLAMA3_FACTOR:g} of the llama3 rope: not stated, Llama 3.1's own"))
        return LLAMA3_FACTOR
    original = source.integer(ORIGINAL, low=1) or config.integer(ORIGINAL, low=1)
    if factor is None and kind == "yarn" and original and context:
        factor = context / original
        notes.append(Note("derived", f"YaRN factor {factor:g}: not stated, max_position_embeddings / {ORIGINAL}"))
    if kind in ("linear", "yarn"):
        return source.need(factor, "factor")
    return 1.0 if factor is None else factor


def _llama3(source: Config, name: str, default: float, kind: str, notes: list[Note]) -> float:
    value = source.number(name)
    if value is None and kind == "llama3":
        notes.append(Note("derived", f"{name} {default:g} of the llama3 rope: not stated, Llama 3.1's own"))
    return default if value is None else value


def magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's own attention factor, 0.1 m ln(factor) + 1 (arXiv 2309.00071)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _attention(source: Config, kind: str, factor: float, notes: list[Note]) -> float | None:
    """attention_factor, else mscale / mscale_all_dim (transformers); attn_factor multiplies YaRN's own (vLLM)."""
    absolute, relative = source.number("attention_factor"), source.number("attn_factor")
    over, under = source.number("mscale"), source.number("mscale_all_dim")
    unscaled = source.boolean("apply_yarn_scaling") is False
    if kind != "yarn":
        return None
    if absolute is not None:
        if relative not in (None, absolute):
            text = "attention_factor and attn_factor are both stated; attention_factor counts"
            notes.append(Note("warning", text, True))
        return absolute
    own = None
    if over and under and over > 0 and under > 0:
        own = magnitude(factor, over) / magnitude(factor, under)
    elif unscaled or relative is not None:
        own = 1.0 if unscaled else magnitude(factor)
    return own if own is None or relative is None else own * relative


def _partial(config: Config, source: Config) -> float | None:
    partial = source.number("partial_rotary_factor")
    return config.number(*PARTIALS) if partial is None else partial


def _sliding_theta(config: Config, inner: Config) -> float | None:
    local = Config(inner.table("sliding_attention") or {}, f"{inner.file}.sliding_attention")
    found = local.number("rope_theta")
    return config.number(*SLIDING_THETAS) if found is None else found


def _check(source: Config, rope: Rope) -> None:
    for name in ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention"):
        value = getattr(rope, name)
        if value is not None and value <= 0:
            raise source.fail("attention_factor" if name == "attention" else name, value, "a positive number")
    if rope.kind == "llama3" and rope.low_freq_factor >= rope.high_freq_factor:
        raise source.fail(
            "low_freq_factor", rope.low_freq_factor, f"less than high_freq_factor {rope.high_freq_factor}"
        )
    if rope.ext_factor is not None and not 0 <= rope.ext_factor <= 1:
        raise source.fail("extrapolation_factor", rope.ext_factor, "a share between 0 and 1")
    if rope.own_yarn and rope.theta <= 1:
        raise source.fail("rope_theta", rope.theta, "more than 1 for YaRN")
    if rope.partial is not None and not 0 < rope.partial <= 1:
        raise source.fail("partial_rotary_factor", rope.partial, "a share between 0 and 1")


def frequency_factors(rope: Rope, dim: int, size: int) -> list[float] | None:
    """Divisors of the plain frequencies, [size]; None when there is nothing to divide.

    ``dim`` rotated values of a head make dim / 2 frequencies; the runtime wants ``size`` entries, the rest are 1.
    """
    if rope.kind == "llama3":
        factors = _llama3_factors(rope, dim)
    elif rope.own_yarn:
        factors = _yarn_factors(rope, dim)
    else:
        return None
    return factors + [1.0] * (size - len(factors))


def proportional_factors(head_dim: int, share: float) -> list[float]:
    """Gemma 4's proportional rope, [head_dim / 2]: unrotated pairs stay in place, their frequency is divided away."""
    rotated = int(head_dim * share / 2)
    return [1.0] * rotated + [UNROTATED] * (head_dim // 2 - rotated)


def _llama3_factors(rope: Rope, dim: int) -> list[float]:
    """Rule of the Llama 3.1 release: long wavelengths are divided by the factor, short ones kept, others blended."""
    factor, context, low, high = rope.factor, rope.original_context, rope.low_freq_factor, rope.high_freq_factor
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


def _yarn_factors(rope: Rope, dim: int) -> list[float]:
    """YaRN as transformers computes it: fast dimensions keep their frequency, slow ones are divided by the factor."""
    low, high = (_correction(rope, beta, dim) for beta in (rope.beta_fast or BETA_FAST, rope.beta_slow or BETA_SLOW))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    extrapolated = 1.0 if rope.ext_factor is None else rope.ext_factor
    factors = []
    for i in range(dim // 2):
        kept = (1 - min(1.0, max(0.0, (i - low) / (high - low)))) * extrapolated
        factors.append(1 / ((1 - kept) / rope.factor + kept))
    return factors


def _correction(rope: Rope, rotations: float, dim: int) -> float:
    """The frequency's index that turns ``rotations`` times within the original context."""
    return dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

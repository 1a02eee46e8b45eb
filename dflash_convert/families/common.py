"""What every drafter family returns, and the table-driven mapping of its tensors.

A family is a table: checkpoint name -> :class:`Rule` (GGUF name, expected shape, transform).  Shapes are
written as space-separated symbols that `dims` resolves, so every tensor is checked against the config before
a byte is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dflash_convert.checkpoint import SourceTensor
from dflash_convert.container.types import KV
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.notes import Note

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# other converters strip these too; nothing in them is a weight of the drafter
IGNORED_SUFFIXES = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
FLOATS = ("BF16", "F16", "F32", "F64")


class Rule(NamedTuple):
    """``shape``: symbols outermost first; ``transform``: a name of :mod:`dflash_convert.encode.transforms`."""

    name: str
    shape: str
    transform: str = "copy"


@dataclass(frozen=True)
class Overrides:
    """What the caller says instead of config.json; None means what config.json says.

    ``taps`` count layer outputs like the checkpoint's own list; ``target_directory`` is where the target's
    tokenizer and weights may be looked up when the drafter refers to them.
    """

    block_size: int | None = None
    mask_token_id: int | None = None
    taps: tuple[int, ...] | None = None
    rope_dimension_count: int | None = None
    keep_unclaimed: bool = False
    target_directory: Path | None = None


class Weight(NamedTuple):
    """A tensor of the checkpoint as the tables see it.

    ``name`` is its canonical name, ``shape`` that of its values (a packed tensor's bytes have another one),
    ``sources`` the tensor itself and then its scales, ``scheme`` how they become values (empty: as they are)
    and ``block`` the rows and columns that share one scale.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...]
    scheme: str = ""
    block: tuple[int, int] = (0, 0)

    @property
    def where(self) -> str:
        """File and tensor, for messages."""
        return f"{self.sources[0].file.name}: tensor {self.sources[0].name!r}"


def plain_weights(tensors: Mapping[str, SourceTensor]) -> list[Weight]:
    return [Weight(t.name, t.shape, (t,)) for t in tensors.values()]


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write: ``shape`` outermost first, ``sources`` the tensors it is made of.

    ``transform`` names a function of :mod:`dflash_convert.encode.transforms`, ``argument`` is its parameter (for
    ``rope_rows`` the head size, for ``stack`` the first matrix among the sources), ``constant`` the values of a
    tensor that is derived rather than read (with sources: the part that replaces theirs).  ``scheme`` and ``block``
    say how quantized sources become values.  ``type`` is a type of the GGUF that no output type changes (empty: the
    output type decides).
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...] = ()
    transform: str = "copy"
    argument: int = 0
    constant: npt.NDArray[np.float32] | None = field(default=None, compare=False)
    scheme: str = ""
    block: tuple[int, int] = (0, 0)
    type: str = ""


@dataclass(frozen=True)
class Description:
    """A drafter, read and understood; nothing of it depends on the output type.

    ``keys`` precede general.file_type in the file, ``late_keys`` follow it, both in the reference's order;
    ``first_keys`` come directly after general.architecture, and so does the chat template if ``early_template``.
    ``taps`` are runtime indices (inputs of target layers).  ``file_type`` is that of a family whose tensors'
    types are the checkpoint's own; such a drafter has no quantized output types.
    """

    family: str
    architecture: str
    keys: tuple[KV, ...]
    late_keys: tuple[KV, ...]
    tensors: tuple[TensorPlan, ...]
    vocab_size: int
    block_size: int | None
    taps: tuple[int, ...]
    mask_token_id: int | None
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    eagle3_vocab: bool = False
    first_keys: tuple[KV, ...] = ()
    early_template: bool = False
    file_type: int | None = None


def normalize(name: str, prefixes: Sequence[str] = ("model.",)) -> tuple[str, int | None]:
    """Strip a known prefix and lift the layer number out: ('layers.{}.input_layernorm.weight', 3)."""
    for prefix in prefixes:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    found = re.match(r"layers\.(\d{1,5})\.", name)
    if not found:
        return name, None
    return "layers.{}." + name[found.end() :], int(found.group(1))


@dataclass
class Mapped:
    """What the tables make of a checkpoint: every weight is in exactly one of the three lists."""

    plans: list[TensorPlan] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unclaimed: list[Weight] = field(default_factory=list)

    def has(self, name: str) -> bool:
        return any(plan.name == name for plan in self.plans)


def plan_tensors(
    weights: Sequence[Weight],
    rules: Mapping[str, Rule],
    dims: Mapping[str, int],
    skip: Mapping[str, str],
    prefixes: Sequence[str] = ("model.",),
) -> Mapped:
    """Apply the table, in source order; a wrong shape or a second tensor for one name is a CheckpointError."""
    mapped = Mapped()
    targets: dict[str, str] = {}
    for weight in weights:
        key, layer = normalize(weight.name, prefixes)
        if key in skip or key.endswith(IGNORED_SUFFIXES):
            mapped.skipped += [(s.name, skip.get(key, "a buffer, not a weight")) for s in weight.sources]
            continue
        rule = rules.get(key)
        if rule is None:
            mapped.unclaimed.append(weight)
            continue
        if layer is not None and layer >= dims["L"]:
            raise CheckpointError(f"{weight.where} is of layer {layer}, config.json says {dims['L']} layers")
        check_shape(weight, rule.shape, dims)
        name = rule.name.format(layer)
        if name in targets:
            raise CheckpointError(f"{weight.where} and {targets[name]!r} both become {name}")
        targets[name] = weight.sources[0].name
        mapped.plans.append(
            TensorPlan(name, weight.shape, weight.sources, rule.transform, scheme=weight.scheme, block=weight.block)
        )
    return mapped


def refuse_unclaimed(
    mapped: Mapped,
    rules: Mapping[str, Rule],
    reasons: Sequence[tuple[str, str]],
    overrides: Overrides,
    arch: str,
) -> None:
    """FamilyError for a tensor that the loader would not claim, unless the caller wants it written.

    ``reasons`` are (part of the name, what the runtime lacks); the first that fits is told.
    """
    if not mapped.unclaimed:
        return
    if overrides.keep_unclaimed:
        for weight in mapped.unclaimed:
            dtype = weight.sources[0].dtype
            if not weight.shape or not (weight.scheme or dtype in FLOATS):
                what = "a scalar" if not weight.shape else f"of dtype {dtype}"
                raise FamilyError(f"{weight.where} is {what}, which --keep-unclaimed cannot write")
            name = _kept_name(weight.name, rules)
            mapped.plans.append(TensorPlan(name, weight.shape, weight.sources, "copy", 0, None, *weight[3:]))
        return
    first = mapped.unclaimed[0]
    reason = next((why for part, why in reasons if part in first.name), f"its {arch} architecture has no such tensor")
    more = f" (and {len(mapped.unclaimed) - 1} more)" if len(mapped.unclaimed) > 1 else ""
    raise FamilyError(
        f"{first.where}{more} would keep llama.cpp from loading the drafter: {reason}",
        tip="llama.cpp refuses a file with a tensor it does not claim; --keep-unclaimed writes it for another runtime",
    )


def _kept_name(name: str, rules: Mapping[str, Rule]) -> str:
    """A bias under its weight's GGUF name, anything else under its own."""
    key, layer = normalize(name)
    rule = rules.get(key.removesuffix(".bias") + ".weight") if key.endswith(".bias") else None
    return rule.name.format(layer).removesuffix(".weight") + ".bias" if rule else name


def check_shape(weight: Weight, shape: str, dims: Mapping[str, int]) -> None:
    """CheckpointError when the tensor does not have the shape the config implies; ``*`` is checked elsewhere."""
    if shape == "*":
        return
    expected = tuple(_dimension(symbol, dims) for symbol in shape.split())
    if weight.shape != expected:
        meaning = " x ".join(SYMBOLS.get(symbol, symbol) for symbol in shape.split())
        raise CheckpointError(
            f"{weight.where} has shape {list(weight.shape)}, config.json implies {list(expected)} ({meaning})",
            tip="config.json and the weights are not of the same drafter, or a field of config.json is wrong",
        )


def _dimension(symbol: str, dims: Mapping[str, int]) -> int:
    return int(symbol) if symbol.isdigit() else dims[symbol]


SYMBOLS = {
    "H": "hidden_size",
    "F": "intermediate_size",
    "N": "num_attention_heads",
    "D": "head_dim",
    "Q": "num_attention_heads * head_dim",
    "K": "num_key_value_heads * head_dim",
    "T": "taps * hidden_size",
    "V": "vocab_size",
    "W": "draft_vocab_size",
    "R": "markov_rank",
    "S": "selector_rank",
    "C": "conv_kernel_size",
    "P": "2 * conv_kernel_size * hidden_size / conv_group_size",
    "M": "hidden_size + markov_rank",
    "E": "2 * hidden_size",
    "Z": "3 * target_hidden_size",
    "B": "backbone_hidden_size",
    "A": "2 * backbone_hidden_size",
    "Lq": "q_lora_rank",
    "Lo": "o_groups * o_lora_rank",
    "G": "num_attention_heads * head_dim / o_groups",
    "X": "n_routed_experts",
    "I": "moe_intermediate_size",
    "J": "n_shared_experts * moe_intermediate_size",
    "Y": "hc_mult",
    "YH": "hc_mult * hidden_size",
    "YY": "(2 + hc_mult) * hc_mult",
}


def require(plans: Sequence[TensorPlan], names: Sequence[str], layers: int, family: str) -> None:
    """CheckpointError listing required tensors that are absent; ``{}`` in a name stands for each layer."""
    have = {plan.name for plan in plans}
    if layers > len(have):  # before anything is made of a number that may be in the billions
        raise CheckpointError(f"config.json says {layers} layers, the checkpoint has only {len(have)} tensors")
    missing = [full for name in names for full in ([name.format(i) for i in range(layers)] if "{}" in name else [name])]
    missing = [name for name in missing if name not in have]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise CheckpointError(
            f"the checkpoint has no tensor for {shown}, which llama.cpp needs for {family}",
            tip="the checkpoint is incomplete, or it is of another drafter family",
        )

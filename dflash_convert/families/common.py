"""What every drafter family returns, and the table-driven mapping of its tensors.

A family is a table: checkpoint name -> :class:`Rule` (GGUF name, expected shape, transform).  Shapes are
written as space-separated symbols that `dims` resolves, so every tensor is checked against the config before
a byte is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dflash_convert.checkpoint import SourceTensor
from dflash_convert.container.types import KV
from dflash_convert.errors import CheckpointError
from dflash_convert.notes import Note

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# other converters strip these too; nothing in them is a weight of the drafter
IGNORED_SUFFIXES = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")


class Rule(NamedTuple):
    """``shape``: symbols outermost first; ``transform``: a name of :mod:`dflash_convert.transforms`."""

    name: str
    shape: str
    transform: str = "copy"


@dataclass(frozen=True)
class TensorPlan:
    """One tensor to write: ``shape`` outermost first, ``sources`` the tensors it is made of.

    ``transform`` names a function of :mod:`dflash_convert.transforms`, ``argument`` is its parameter (for
    ``rope_rows`` the head size), ``constant`` the values of a tensor that is derived rather than read.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[SourceTensor, ...] = ()
    transform: str = "copy"
    argument: int = 0
    constant: npt.NDArray[np.float32] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Description:
    """A drafter, read and understood; nothing of it depends on the output type.

    ``keys`` precede general.file_type in the file, ``late_keys`` follow it, both in the reference's order.
    ``taps`` are runtime indices (inputs of target layers).
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


def plan_tensors(
    tensors: Mapping[str, SourceTensor],
    rules: Mapping[str, Rule],
    dims: Mapping[str, int],
    skip: Mapping[str, str],
    prefixes: Sequence[str] = ("model.",),
) -> tuple[list[TensorPlan], list[tuple[str, str]], list[str]]:
    """Apply the table: (plans in source order, skipped (name, reason), names nobody claims)."""
    plans: list[TensorPlan] = []
    skipped: list[tuple[str, str]] = []
    unclaimed: list[str] = []
    targets: dict[str, str] = {}
    for source in tensors.values():
        key, layer = normalize(source.name, prefixes)
        if key in skip or key.endswith(IGNORED_SUFFIXES):
            skipped.append((source.name, skip.get(key, "a buffer, not a weight")))
            continue
        rule = rules.get(key)
        if rule is None:
            unclaimed.append(source.name)
            continue
        if layer is not None and layer >= dims["L"]:
            raise CheckpointError(
                f"{source.file.name}: tensor {source.name!r} is of layer {layer}, config.json says {dims['L']} layers"
            )
        check_shape(source, rule.shape, dims)
        name = rule.name.format(layer)
        if name in targets:
            raise CheckpointError(f"{source.file.name}: {source.name!r} and {targets[name]!r} both become {name}")
        targets[name] = source.name
        plans.append(TensorPlan(name, source.shape, (source,), rule.transform))
    return plans, skipped, unclaimed


def check_shape(source: SourceTensor, shape: str, dims: Mapping[str, int]) -> None:
    """CheckpointError when the tensor does not have the shape the config implies."""
    expected = tuple(_dimension(symbol, dims) for symbol in shape.split())
    if source.shape != expected:
        meaning = " x ".join(SYMBOLS.get(symbol, symbol) for symbol in shape.split())
        raise CheckpointError(
            f"{source.file.name}: tensor {source.name!r} has shape {list(source.shape)}, "
            f"config.json implies {list(expected)} ({meaning})",
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
}


def require(plans: Sequence[TensorPlan], names: Sequence[str], layers: int, family: str) -> None:
    """CheckpointError listing required tensors that are absent; ``{}`` in a name stands for each layer."""
    have = {plan.name for plan in plans}
    missing = [full for name in names for full in ([name.format(i) for i in range(layers)] if "{}" in name else [name])]
    missing = [name for name in missing if name not in have]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        raise CheckpointError(
            f"the checkpoint has no tensor for {shown}, which llama.cpp needs for {family}",
            tip="the checkpoint is incomplete, or it is of another drafter family",
        )

"""Weights for the reference forwards: from a GGUF, or from a checkpoint through its family's description.

A checkpoint's drafter comes through the same table that the conversion uses (``families``), so what is
compared later is the file against its source and not two readings of the source.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import quant
from dflash_convert.checkpoint import Checkpoint, Reader, open_checkpoint
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.drafter import Description, Overrides, TensorPlan
from dflash_convert.encode.transforms import RowSource, row_count
from dflash_convert.errors import FamilyError
from dflash_convert.families.backbone import BACKBONE
from dflash_convert.families.common import normalize
from dflash_convert.families.detect import describe
from dflash_convert.forward.drafter import Drafter
from dflash_convert.forward.hyper import DrafterHyper, TargetHyper, drafter_hyper, target_hyper
from dflash_convert.forward.ops import Rope
from dflash_convert.forward.target import Target
from dflash_convert.hparams import Config, architectures
from dflash_convert.target import Target as TargetSource
from dflash_convert.tensors import FUSION
from quant import from_bf16

Array = NDArray[Any]
DEFAULT_BUDGET = 2 << 30  # bytes of decoded weights kept: small models stay whole, large ones stream by layer

# a Qwen3 target's tensors: those of the drafters' backbone, without the fusion of taps
QWEN3 = {name: rule.name for name, rule in BACKBONE.items() if rule.name not in FUSION}


class Weights(Mapping[str, Array]):
    """Tensors by name, decoded to float32 when first asked for (integer tensors stay int64).

    At most ``budget`` bytes of decoded tensors are kept, the ones used last.
    """

    def __init__(self, readers: Mapping[str, Callable[[], Array]], budget: int = DEFAULT_BUDGET) -> None:
        self._readers, self._budget, self._held = readers, budget, 0
        self._kept: OrderedDict[str, Array] = OrderedDict()

    def __getitem__(self, name: str) -> Array:
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        array = self._readers[name]()
        self._kept[name] = array
        self._held += array.nbytes
        while self._held > self._budget and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1].nbytes
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class DrafterSource(NamedTuple):
    """A drafter's weights and hyper-parameters, wherever they came from."""

    weights: Weights
    hyper: DrafterHyper

    def drafter(
        self, target: Target | None = None, *, half_cache: bool = False, embeddings_as_head: bool = False
    ) -> Drafter:
        """Ready to draft, with ``target``'s embeddings and head where it has none; options as in `Drafter`."""
        embed, head = (target.embed, target.head) if target else (None, None)
        return Drafter(
            self.weights,
            self.hyper,
            embed=embed,
            head=head,
            half_cache=half_cache,
            embeddings_as_head=embeddings_as_head,
        )


def gguf_weights(file: Gguf, budget: int = DEFAULT_BUDGET) -> Weights:
    """Every tensor of a GGUF, dequantized bit for bit as ggml does it."""
    return Weights({name: _gguf_reader(file, name) for name in file.tensors}, budget)


def _gguf_reader(file: Gguf, name: str) -> Callable[[], Array]:
    def read() -> Array:
        info = file.tensors[name]
        if info.type.name == "I64":
            return file.data(name).reshape(-1).view(np.int64).reshape(info.shape)
        if info.type.name not in quant.TYPES:
            raise FamilyError(f"{file.path}: tensor {name!r} is {info.type.name}, which cannot be decoded here")
        return quant.dequantize(file.data(name), info.type.name).reshape(info.shape)

    return read


def drafter_from_gguf(path: str | Path, budget: int = DEFAULT_BUDGET) -> DrafterSource:
    """ContainerError for a damaged file, FamilyError for one that is no dflash drafter."""
    file = open_gguf(path)
    keys = {name: kv.value for name, kv in file.keys.items()}
    return DrafterSource(gguf_weights(file, budget), drafter_hyper(keys, file.path.name))


def target_from_gguf(path: str | Path, *, half_cache: bool = False, budget: int = DEFAULT_BUDGET) -> Target:
    """A ``qwen3`` GGUF; FamilyError for other architectures."""
    file = open_gguf(path)
    keys = {name: kv.value for name, kv in file.keys.items()}
    return Target(gguf_weights(file, budget), target_hyper(keys, file.path.name), half_cache=half_cache)


def drafter_from_checkpoint(
    directory: str | Path,
    target: TargetSource,
    overrides: Overrides | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
) -> DrafterSource:
    """A drafter's checkpoint; ``overrides`` as for a conversion."""
    checkpoint = open_checkpoint(Path(directory))
    return drafter_from_description(describe(checkpoint, target, overrides), checkpoint.directory.name, budget)


def drafter_from_description(
    description: Description, source: str = "drafter", budget: int = DEFAULT_BUDGET
) -> DrafterSource:
    """From what the conversion made of a checkpoint: its keys and planned tensors, read before any encoding."""
    weights = Weights({plan.name: _plan_reader(plan) for plan in description.tensors}, budget)
    return DrafterSource(weights, drafter_hyper(description.values, source))


def _plan_reader(plan: TensorPlan) -> Callable[[], Array]:
    def read() -> Array:
        with Reader() as reader:
            rows = RowSource(reader).rows(plan, 0, row_count(plan.shape))
            return _float32(rows).reshape(plan.shape)

    return read


def _float32(rows: Array) -> Array:
    """float32 values of source rows; bf16 comes as uint16 patterns, integers stay int64."""
    if rows.dtype == np.uint16:
        return from_bf16(rows)
    return rows.astype(np.int64 if rows.dtype.kind == "i" else np.float32)


def target_from_checkpoint(directory: str | Path, *, half_cache: bool = False, budget: int = DEFAULT_BUDGET) -> Target:
    """A Hugging Face ``Qwen3ForCausalLM`` directory with its weights; FamilyError for other classes."""
    checkpoint = open_checkpoint(Path(directory))
    if "Qwen3ForCausalLM" not in architectures(checkpoint.config):
        raise FamilyError(
            f"{checkpoint.directory}: the reference forward knows Qwen3ForCausalLM targets only",
            tip="use validate with llama.cpp for other targets",
        )
    readers = {}
    for source in checkpoint.tensors.values():
        key, layer = normalize(source.name)
        if key in QWEN3:
            name = QWEN3[key].format(layer)
            readers[name] = _plan_reader(TensorPlan(name, source.shape, (source,)))
    if Config(checkpoint.config, checkpoint.config_file).boolean("tie_word_embeddings"):
        readers.pop("output.weight", None)
    return Target(Weights(readers, budget), _qwen3_hyper(checkpoint), half_cache=half_cache)


def _qwen3_hyper(checkpoint: Checkpoint) -> TargetHyper:
    config = Config(checkpoint.config, checkpoint.config_file)

    def size(name: str) -> int:
        return config.need(config.integer(name, low=1), name)

    rope = Config(config.table("rope_parameters", "rope_scaling") or {})
    kind = rope.text("rope_type", "type") or "default"
    if kind != "default":
        raise FamilyError(f"config.json: rope type {kind!r} of the target has no reference forward")
    heads, hidden = size("num_attention_heads"), size("hidden_size")
    head_dim = config.integer("head_dim", low=2) or hidden // heads
    theta = rope.number("rope_theta") or config.number("rope_theta")
    return TargetHyper(
        layers=size("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", low=1) or heads,
        head_dim=head_dim,
        eps=float(np.float32(config.need(config.number("rms_norm_eps"), "rms_norm_eps"))),
        rope=Rope(config.need(theta, "rope_theta"), head_dim),
    )

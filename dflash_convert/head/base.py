"""The drafter that gets a head: a GGUF, or what a conversion is about to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_convert.container.reader import Gguf
from dflash_convert.container.types import KV, TensorType, array_length
from dflash_convert.drafter import TensorPlan
from dflash_convert.errors import InputError
from dflash_convert.head.provenance import MAP
from dflash_convert.pairing.drafters import drafter_plan
from dflash_convert.pairing.finding import errors_of
from dflash_convert.pairing.reduced import check_heads
from dflash_convert.pairing.tensors import check_tensors
from dflash_convert.pairing.view import UNKNOWN
from dflash_convert.pairing.weights import read_integers
from dflash_convert.plan import FilePlan
from dflash_convert.quantization import tensor_plan
from dflash_convert.reduced import map_fault
from dflash_convert.tables import HEAD

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Base:
    """``plan`` writes the drafter as it is; ``name`` is for messages."""

    name: str
    plan: FilePlan

    @classmethod
    def of(cls, gguf: Gguf) -> Base:
        typed = tuple((tensor_plan(gguf, name), info.type) for name, info in gguf.tensors.items())
        return cls(gguf.path.name, FilePlan(str(gguf.get("general.file_type")), tuple(gguf.keys.values()), typed))

    @cached_property
    def keys(self) -> Mapping[str, KV]:
        return {kv.name: kv for kv in self.plan.keys}

    @cached_property
    def tensors(self) -> Mapping[str, tuple[TensorPlan, TensorType]]:
        return {plan.name: (plan, kind) for plan, kind in self.plan.tensors}

    def get(self, name: str) -> Any:
        """A key's value; None without it."""
        return self.keys[name].value if name in self.keys else None

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture"))

    @property
    def size(self) -> int:
        """Tokens of its vocabulary."""
        return array_length(self.get("tokenizer.ggml.tokens"))


def current_map(drafter: Base) -> Ids | None:
    """Its own ``d2t`` as token ids [rows]; InputError when it is none."""
    if MAP not in drafter.tensors:
        return None
    plan, kind = drafter.tensors[MAP]
    if kind is not TensorType.I64:
        raise InputError(f"{drafter.name}: d2t is {kind.name}, and llama.cpp reads I64 only")
    ids = read_integers(plan)
    fault = map_fault(ids, drafter.size or None, offsets=False)
    if fault is not None:
        raise InputError(f"{drafter.name}: d2t {fault.text}", tip="convert the drafter again")
    return ids


def check_own_head(drafter: Base) -> None:
    """InputError for an own head or map that ``check`` refuses: rows chosen from it would stand for other tokens."""
    if not drafter.tensors.keys() & {HEAD, MAP}:
        return
    current_map(drafter)
    view = drafter_plan(drafter.name, drafter.plan)
    for finding in errors_of([*check_heads(view, UNKNOWN), *check_tensors(view)]):
        raise InputError(f"{drafter.name} cannot be run: {finding}", tip=finding.cure)

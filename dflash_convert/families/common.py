"""The table-driven mapping of a checkpoint's tensors.

A family is a table: checkpoint name -> :class:`~dflash_convert.drafter.Rule` (GGUF name, expected shape, transform).
Shapes are written as space-separated symbols that `dims` resolves, so every tensor is checked against the config
before a byte is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash_convert.checkpoint import SourceTensor
from dflash_convert.drafter import Overrides, Rule, TensorPlan, Weight
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.tensors import SYMBOLS, Table, dimension, symbols
from dflash_convert.text import named

# other converters strip these too; nothing in them is a weight of the drafter
IGNORED_SUFFIXES = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
KEEP_TIP = "llama.cpp refuses a file with a tensor it does not claim; --keep-unclaimed writes it for another runtime"
FLOATS = ("BF16", "F16", "F32", "F64")


def plain_weights(tensors: Mapping[str, SourceTensor]) -> list[Weight]:
    return [Weight(t.name, t.shape, (t,)) for t in tensors.values()]


def rules(table: Table, names: Mapping[str, str]) -> dict[str, Rule]:
    """A family's table: checkpoint name -> the GGUF name and, after a blank, what is done to the tensor."""
    found = {}
    for source, entry in names.items():
        name, _, transform = entry.partition(" ")
        found[source] = Rule(name, table[name], transform or "copy")
    return found


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
            TensorPlan(
                name, weight.shape, weight.sources, transform=rule.transform, scheme=weight.scheme, block=weight.block
            )
        )
    return mapped


@dataclass(frozen=True)
class Needs:
    """GGUF names that llama.cpp needs for ``family``; ``{}`` in a name stands for each of ``layers``."""

    names: Sequence[str]
    layers: int
    family: str

    def missing(self, plans: Sequence[TensorPlan]) -> list[str]:
        """For a number of layers that is known to be small."""
        have = {plan.name for plan in plans}
        each = (([n.format(i) for i in range(self.layers)] if "{}" in n else [n]) for n in self.names)
        return [name for names in each for name in names if name not in have]


def settle(
    mapped: Mapped,
    rules: Mapping[str, Rule],
    reasons: Sequence[tuple[str, str]],
    overrides: Overrides,
    arch: str,
    needs: Needs,
) -> None:
    """Every tensor that llama.cpp needs is there, and none that its loader would not claim.

    FamilyError for the latter, unless the caller wants it written; CheckpointError for the former.  ``reasons`` are
    (part of the name, what the runtime lacks); the first that fits is told.
    """
    missing = needs.missing(mapped.plans)
    known = [why for part, why in reasons if any(part in weight.name for weight in mapped.unclaimed)]
    if mapped.unclaimed and missing and not known and not overrides.keep_unclaimed:
        strange = named([repr(weight.name) for weight in mapped.unclaimed], width=None)
        raise CheckpointError(
            f"{_lacking(missing, needs)}, but {strange}, which no such drafter has",
            tip="its tensors are named another way than known exporters do, or it is of another drafter family",
        )
    _refuse_unclaimed(mapped, rules, reasons, overrides, arch, complete=not missing)
    require(mapped.plans, needs)


def require(plans: Sequence[TensorPlan], needs: Needs) -> None:
    """CheckpointError listing what ``needs`` that is absent."""
    if needs.layers > len(plans):  # before anything is made of a number that may be in the billions
        raise CheckpointError(f"config.json says {needs.layers} layers, the checkpoint has only {len(plans)} tensors")
    missing = needs.missing(plans)
    if missing:
        tip = "the checkpoint is incomplete, or it is of another drafter family"
        raise CheckpointError(_lacking(missing, needs), tip=tip)


def _lacking(missing: Sequence[str], needs: Needs) -> str:
    return f"the checkpoint has no tensor for {named(missing, width=None)}, which llama.cpp needs for {needs.family}"


def _refuse_unclaimed(
    mapped: Mapped,
    rules: Mapping[str, Rule],
    reasons: Sequence[tuple[str, str]],
    overrides: Overrides,
    arch: str,
    *,
    complete: bool,
) -> None:
    if not mapped.unclaimed:
        return
    if overrides.keep_unclaimed:
        for weight in mapped.unclaimed:
            dtype = weight.sources[0].dtype
            if not weight.shape or not (weight.scheme or dtype in FLOATS):
                what = "a scalar" if not weight.shape else f"of dtype {dtype}"
                raise FamilyError(f"{weight.where} is {what}, which --keep-unclaimed cannot write")
            name = _kept_name(weight.name, rules)
            mapped.plans.append(
                TensorPlan(name, weight.shape, weight.sources, scheme=weight.scheme, block=weight.block)
            )
        return
    first = mapped.unclaimed[0]
    reason = next((why for part, why in reasons if part in first.name), f"its {arch} architecture has no such tensor")
    more = f" (and {len(mapped.unclaimed) - 1} more)" if len(mapped.unclaimed) > 1 else ""
    raise FamilyError(
        f"{first.where}{more} would keep llama.cpp from loading the drafter: {reason}",
        tip=KEEP_TIP if complete else "take a drafter of another family for this target",
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
    expected = tuple(dimension(symbol, dims) for symbol in symbols(shape))
    if weight.shape != expected:
        meaning = " x ".join(SYMBOLS.get(symbol, symbol) for symbol in symbols(shape))
        raise CheckpointError(
            f"{weight.where} has shape {list(weight.shape)}, config.json implies {list(expected)} ({meaning})",
            tip="config.json and the weights are not of the same drafter, or a field of config.json is wrong",
        )

"""The conversion plan: every key, tensor, type and byte of the output, decided before a weight is read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dflash_convert.container.types import ALIGNMENT, BLOCK, KV, TensorType, tensor_nbytes, u32
from dflash_convert.container.writer import Entry
from dflash_convert.drafter import Description, Taps, TensorPlan
from dflash_convert.encode.imatrix import open_imatrix
from dflash_convert.errors import CheckpointError, UsageError
from dflash_convert.notes import Note
from dflash_convert.text import named, shorten

FLOAT_DTYPES = {"BF16": TensorType.BF16, "F16": TensorType.F16, "F32": TensorType.F32, "F64": TensorType.F32}
HALF = ("BF16", "F16")
TEMPLATE = "tokenizer.chat_template"
INTEGER_TENSORS = {"d2t": TensorType.I64}
QUANTIZATION_VERSION = 2
SHOWN = 8  # skipped tensors that a note names

# types the reference converter writes itself; all others are llama-quantize's recipe on the unquantized file
DIRECT = {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7}


@dataclass(frozen=True)
class TypeOptions:
    """How the recipe may be overruled; types are spelled as ggml spells them."""

    pure: bool = False
    strict: bool = False
    output_type: str | None = None
    embedding_type: str | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    imatrix: Path | None = None

    @property
    def any(self) -> bool:
        return self.pure or bool(self.output_type or self.embedding_type or self.overrides)

    def imatrix_keys(self) -> list[KV]:
        if self.imatrix is None:
            return []

        return open_imatrix(self.imatrix).keys()


@dataclass(frozen=True)
class FilePlan:
    """One output file: keys and tensors in file order, each tensor with its type."""

    outtype: str
    keys: tuple[KV, ...] = field(repr=False)
    tensors: tuple[tuple[TensorPlan, TensorType], ...] = field(repr=False)
    fallbacks: tuple[str, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        return [Entry(plan.name, plan.shape, kind) for plan, kind in self.tensors]

    @property
    def padded_bytes(self) -> int:
        """Bytes of the tensor section, each tensor padded."""
        return sum(-(-tensor_nbytes(kind, plan.shape) // ALIGNMENT) * ALIGNMENT for plan, kind in self.tensors)

    def type_counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for _, kind in self.tensors:
            counts[kind.name] = counts.get(kind.name, 0) + 1
        return counts


def resolve_outtype(name: str, tensors: Sequence[TensorPlan]) -> str:
    """'auto' is the dtype of the first matrix in half precision, F32 only where all are; other names are checked."""
    upper = name.upper()
    if upper in DIRECT:
        return upper
    if upper == "AUTO":
        kinds = [t.sources[0].dtype for t in tensors if t.sources and len(t.shape) > 1]
        half = next((kind for kind in kinds if kind in HALF), None)
        return half or (FLOAT_DTYPES[kinds[0]].name if kinds and kinds[0] in FLOAT_DTYPES else "BF16")
    from quant.recipe import FTYPES

    if upper not in FTYPES:
        raise UsageError(f"unknown output type {name!r}", tip=_meant(name, ("AUTO", *DIRECT, *FTYPES)))
    return upper


def _meant(name: str, known: Sequence[str]) -> str:
    """Types that are spelled almost so, else where all of them are listed."""
    bare = {re.sub(r"[\W_]", "", each).lower(): each.lower() for each in known}
    wanted = re.sub(r"[\W_]", "", name).lower()
    close = [wanted] if wanted in bare else difflib.get_close_matches(wanted, bare, n=3, cutoff=0.6)
    begins = [each for each in bare if wanted and each.startswith(wanted)]
    found = list(dict.fromkeys(bare[each] for each in (*close, *begins)))[:4]
    listed = "dflash-convert quantize --help lists every type"
    return f"did you mean {' or '.join(found)}? {listed}" if found else f"for example q8_0 or q4_k_m; {listed}"


def plan_file(
    description: Description,
    outtype: str,
    general: Sequence[KV],
    tokenizer: Sequence[KV],
    extra: Sequence[KV],
    options: TypeOptions,
) -> FilePlan:
    """Keys and types of one output; ``outtype`` is resolved already."""
    quantized = outtype not in DIRECT or options.any
    if quantized and description.file_type is not None:
        raise UsageError(
            f"a {description.family} drafter with experts keeps the types of its checkpoint: {outtype} is not possible",
            tip="leave --outtype and the type options out",
        )
    if quantized:
        typed, fallbacks, file_type = typed_by_recipe(description.tensors, outtype, options)
    else:
        typed, fallbacks = typed_directly(description.tensors, outtype)
        file_type = DIRECT[outtype] if description.file_type is None else description.file_type
    if fallbacks and options.strict:
        raise CheckpointError(f"{outtype} does not fit every tensor: {'; '.join(fallbacks)}", tip="leave --strict out")
    type_key = u32("general.file_type", file_type)
    version = u32("general.quantization_version", QUANTIZATION_VERSION)
    if quantized:  # llama-quantize sets these two anew, which moves them to the end
        keys = [*general, *description.keys, *description.late_keys, *tokenizer, version, type_key]
        keys += options.imatrix_keys()
    else:
        keys = [*general, *description.keys, type_key, *description.late_keys, version, *tokenizer]
    keys[1:1] = description.first_keys
    if description.early_template:
        keys[1:1] = [kv for kv in tokenizer if kv.name == TEMPLATE]
        keys = list({kv.name: kv for kv in keys}.values())
    return FilePlan(outtype, (*keys, *extra), tuple(typed), tuple(fallbacks))


def base_type(plan: TensorPlan) -> TensorType | None:
    """A type that no output type changes: integers, vectors, norms and what is not a weight stay exact."""
    if plan.type:
        return TensorType[plan.type]
    if plan.name in INTEGER_TENSORS:
        return INTEGER_TENSORS[plan.name]
    if len(plan.shape) <= 1 or plan.name.endswith("_norm.weight") or not plan.name.endswith(".weight"):
        return TensorType.F32
    return None


def typed_directly(
    tensors: Sequence[TensorPlan], outtype: str
) -> tuple[list[tuple[TensorPlan, TensorType]], list[str]]:
    """f32, f16, bf16 and q8_0 as convert_hf_to_gguf chooses them: rows that do not fit become F16."""
    wanted = TensorType[outtype]
    typed, fallbacks = [], []
    for plan in tensors:
        fixed = base_type(plan)
        kind = wanted if fixed is None else fixed
        if plan.shape[-1] % BLOCK[kind][0]:
            fallbacks.append(f"{plan.name} has rows of {plan.shape[-1]}: F16 instead of {kind.name}")
            kind = TensorType.F16
        typed.append((plan, kind))
    return typed, fallbacks


def typed_by_recipe(
    tensors: Sequence[TensorPlan], outtype: str, options: TypeOptions
) -> tuple[list[tuple[TensorPlan, TensorType]], list[str], int]:
    """llama-quantize's choice, on what an unquantized file would hold: (typed tensors, fallbacks, file type)."""
    from quant import QuantError
    from quant.recipe import FTYPES, assign

    ordered = sorted(tensors, key=lambda plan: quantize_order(plan.name))
    try:
        decisions = assign(
            [(plan.name, plan.shape) for plan in ordered],
            outtype,
            pure=options.pure,
            output_type=options.output_type,
            token_embedding_type=options.embedding_type,
            overrides=options.overrides,
            imatrix=options.imatrix is not None,
        )
    except QuantError as error:
        tip = "--imatrix FILE gives them" if "importance weights" in str(error) else None
        raise UsageError(f"{outtype}: {error}", tip=tip) from None
    for pattern, asked in options.overrides:
        if not any(re.search(pattern.lower(), plan.name) for plan in ordered):
            raise UsageError(
                f"--tensor-type {pattern}={asked}: no tensor has such a name",
                tip=f"patterns are read in lower case, as llama-quantize reads them; names are like {ordered[-1].name}",
            )
    typed, fallbacks = [], []
    for plan, decision in zip(ordered, decisions, strict=True):
        fixed = base_type(plan)
        kind = unquantized_type(plan) if fixed is None else fixed
        if decision.type is not None:
            kind = TensorType[decision.type]
        if decision.fallback_from is not None:
            fallbacks.append(
                f"{plan.name} has rows of {plan.shape[-1]}: {kind.name} instead of {decision.fallback_from}"
            )
        typed.append((replace(plan, shape=_ggml_shape(plan.shape)), kind))
    return typed, fallbacks, FTYPES[outtype]


def _ggml_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """llama-quantize drops outer dimensions of 1 ([1, 320] becomes [320]), since ggml does not count them."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def unquantized_type(plan: TensorPlan) -> TensorType:
    """What a weight stays when the recipe leaves it alone: the checkpoint's own format."""
    dtype = plan.sources[0].dtype if plan.sources else "F32"
    if dtype in TensorType.__members__:
        return TensorType[dtype]
    return FLOAT_DTYPES.get(dtype, TensorType.BF16)


def quantize_order(name: str) -> tuple[int, str]:
    """llama-quantize writes tensors outside the blocks first, then block by block, each by name."""
    found = re.match(r"blk\.(\d+)\.", name)
    return (int(found.group(1)) if found else -1, name)


def plan_to_json(plan: FilePlan, header_bytes: int) -> dict[str, Any]:
    """The plan as data: what --dry-run --json prints."""
    return {
        "outtype": plan.outtype,
        "bytes": header_bytes + plan.padded_bytes,
        "keys": [{"name": kv.name, "type": kv.type.name, "value": shown_value(kv)} for kv in plan.keys],
        "tensors": [
            {
                "name": p.name,
                "shape": list(p.shape),
                "type": k.name,
                "bytes": tensor_nbytes(k, p.shape),
                "sources": [s.name for s in p.sources],
                "transform": p.transform,
            }
            for p, k in plan.tensors
        ],
        "fallbacks": list(plan.fallbacks),
    }


def shown_value(kv: KV, limit: int = 16) -> Any:
    """A key's value fit to print: long arrays as a count, long strings shortened."""
    if kv.item is not None:
        return list(kv.value) if len(kv.value) <= limit else f"{len(kv.value)} items"
    return shorten(kv.value, 80) if isinstance(kv.value, str) else kv.value


def shown_key(kv: KV) -> str:
    """A key as people read it; taps as layer outputs, as everywhere but in a GGUF."""
    if kv.name.endswith(".target_layers") and isinstance(kv.value, Sequence):
        return f"{kv.name} = {Taps.from_inputs(kv.value)} (in the file as layer inputs, one more)"
    return f"{kv.name} = {shown_value(kv)}"


def notes_of(description: Description) -> list[Note]:
    """The description's notes and its skipped tensors."""
    return [*description.notes, *skipped_notes(description)]


def skipped_notes(description: Description) -> list[Note]:
    """One note per reason; of many tensors (a target's in the same file) the first few are named."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in description.skipped:
        by_reason.setdefault(reason, []).append(name)
    notes = []
    for reason, names in by_reason.items():
        notes.append(Note("skipped", f"{named(names, SHOWN, None)}: {reason}"))
    return notes

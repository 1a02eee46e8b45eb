"""GGUF to GGUF: llama-quantize's job, on drafter files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dflash_convert.checkpoint import SourceTensor
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, TensorType, u32
from dflash_convert.container.writer import GgufOutput, layout
from dflash_convert.drafter import TensorPlan
from dflash_convert.encode.pieces import Place, make_pieces
from dflash_convert.encode.workers import run_pieces
from dflash_convert.errors import CheckpointError, FamilyError, UsageError
from dflash_convert.forks.dialects import refuse_fork
from dflash_convert.llama import drafter
from dflash_convert.output import check_output_path, check_space
from dflash_convert.plan import QUANTIZATION_VERSION, FilePlan, TypeOptions, resolve_outtype, typed_by_recipe

FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


@dataclass(frozen=True)
class Quantized:
    """A finished file, and what did not get the type asked for."""

    path: Path
    outtype: str
    nbytes: int
    tensor_types: dict[str, int]
    fallbacks: tuple[str, ...]
    seconds: float


def plan_quantize(source: Gguf, outtype: str, options: TypeOptions, *, allow_requantize: bool = False) -> FilePlan:
    """Keys and types of the output, in llama-quantize's order."""
    name = resolve_outtype(outtype, ()) if outtype.lower() != "auto" else ""
    if not name:
        raise UsageError("quantize needs a type", tip="for example q4_0 or q4_k_m")
    refuse_fork(source)
    row = drafter(source.architecture)
    if row is None:
        raise FamilyError(
            f"{source.path}: architecture {source.architecture!r} is not a drafter's",
            tip="this command quantizes drafters; use llama-quantize for other models",
        )
    if row.key("expert_count") in source.keys:
        raise FamilyError(
            f"{source.path}: a drafter with experts keeps the types of its checkpoint; llama.cpp's recipes for "
            "experts are not implemented here",
            tip="llama-quantize quantizes it",
        )
    typed, fallbacks, file_type = typed_by_recipe([tensor_plan(source, t) for t in source.tensors], name, options)
    _check_requantize(source, typed, allow_requantize)
    if fallbacks and options.strict:
        raise CheckpointError(f"{name} does not fit every tensor: {'; '.join(fallbacks)}", tip="leave --strict out")
    skip = ("general.quantization_version", "general.file_type")
    keys: list[KV] = [kv for kv in source.keys.values() if kv.name not in skip and not kv.name.startswith("split.")]
    keys += [u32(skip[0], QUANTIZATION_VERSION), u32(skip[1], file_type), *options.imatrix_keys()]
    return FilePlan(name, tuple(keys), tuple(typed), tuple(fallbacks))


def tensor_plan(source: Gguf, name: str) -> TensorPlan:
    """A GGUF tensor as a source: its bytes are read from the file like a checkpoint's."""
    info = source.tensors[name]
    tensor = SourceTensor(name, source.path, info.type.name, info.shape, info.offset, info.nbytes)
    return TensorPlan(name, info.shape, (tensor,))


def _check_requantize(source: Gguf, typed: list[tuple[TensorPlan, TensorType]], allow: bool) -> None:
    for plan, kind in typed:
        old = source.tensors[plan.name].type
        if old is kind or old in FLOATS:
            continue
        if old in (TensorType.I8, TensorType.I16, TensorType.I32, TensorType.I64):
            continue
        if not allow:
            raise CheckpointError(
                f"{source.path}: {plan.name} is {old.name} already; making it {kind.name} loses twice",
                tip="start from the bf16 file or the checkpoint, or pass --allow-requantize",
            )


def quantize_file(
    source_path: Path,
    output: Path,
    outtype: str,
    options: TypeOptions,
    *,
    allow_requantize: bool = False,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Quantized:
    """Write ``output``; on any error it has not changed."""
    begin = time.monotonic()
    source = open_gguf(source_path)
    check_output_path(output, force=force, inputs=[source_path])
    plan = plan_quantize(source, outtype, options, allow_requantize=allow_requantize)
    nbytes = write_file(plan, output, options.imatrix, force=force, threads=threads, progress=progress)
    return Quantized(output, plan.outtype, nbytes, plan.type_counts(), plan.fallbacks, time.monotonic() - begin)


def write_file(
    plan: FilePlan,
    output: Path,
    imatrix: Path | None = None,
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write one planned file, whole or not at all; returns its size in bytes."""
    places = layout(plan.keys, plan.entries)
    check_space(output.parent, places.size)
    with GgufOutput(output, plan.entries, places, force=force) as file:
        pieces = []
        for tensor, kind in plan.tensors:
            pieces += make_pieces(tensor, (Place(file.fileno(), file.offset(tensor.name), kind.name),), imatrix)
        run_pieces(pieces, threads, progress)
        file.commit()
    return places.size

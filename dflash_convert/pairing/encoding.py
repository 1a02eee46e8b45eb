"""general.file_type against the tensors: under this name a file is published, found and trusted.

llama.cpp itself only prints it.  A file may hold other types than its recipe (``--tensor-type``, ``--pure``), so a
mixture that no file type makes is judged by what most of its weights are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dflash_convert import llama
from dflash_convert.container.types import TensorType
from dflash_convert.drafter import TensorPlan
from dflash_convert.pairing.finding import Finding, warning
from dflash_convert.pairing.view import DrafterView, Shape
from dflash_convert.plan import DIRECT, base_type, typed_directly
from quant.errors import QuantError
from quant.recipe import FTYPES, assign, default_type, ftype_name

KEY = "general.file_type"
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class EncodingFault:
    """``stated`` in the header, ``found`` in the tensors; ``certain``: the tensors are just what ``found`` makes."""

    stated: str
    found: str
    certain: bool


def encoding_fault(
    file_type: int, tensors: Mapping[str, tuple[Shape, TensorType]], *, imatrix: bool = False
) -> EncodingFault | None:
    """None when the tensors can have come from that file type; ``imatrix``: they were made with importance weights."""
    names = {number: ftype_name(name) for name, number in FTYPES.items()}
    stated = names.get(file_type)
    if stated is not None and _made_by(stated, tensors, imatrix):
        return None
    makers = [name for name in dict.fromkeys(names.values()) if _made_by(name, tensors, imatrix)]
    shown = stated or llama.file_type_name(file_type) or f"type {file_type}"
    if makers:
        return EncodingFault(shown, " or ".join(makers[:3]), certain=True)
    most = _most(tensors)
    if most is None or (stated is None and most not in FLOATS):
        return None  # one of the types that this project does not write, and weights that may be its
    if stated is None or default_type(stated) != most:
        return EncodingFault(shown, f"mostly {most}", certain=False)
    return None


def _made_by(file_type: str, tensors: Mapping[str, tuple[Shape, TensorType]], imatrix: bool) -> bool:
    """Whether convert_hf_to_gguf or llama-quantize (whole recipe or ``--pure``) gives these types."""
    plans = [TensorPlan(name, shape) for name, (shape, _) in tensors.items()]
    if file_type in DIRECT:
        typed, _ = typed_directly(plans, file_type)
        if all(tensors[plan.name][1] is kind for plan, kind in typed if base_type(plan) is None):
            return True
    return any(_quantized_by(file_type, tensors, plans, pure, imatrix) for pure in (False, True))


def _quantized_by(
    file_type: str,
    tensors: Mapping[str, tuple[Shape, TensorType]],
    plans: list[TensorPlan],
    pure: bool,
    imatrix: bool,
) -> bool:
    try:
        decided = assign([(plan.name, plan.shape) for plan in plans], file_type, pure=pure, imatrix=imatrix)
    except QuantError:
        return False
    return all(d.type is None or tensors[d.name][1].name == d.type for d in decided)


def _most(tensors: Mapping[str, tuple[Shape, TensorType]]) -> str | None:
    """The type of most weights among the matrices whose type a file type decides."""
    count: Counter[str] = Counter()
    for name, (shape, kind) in tensors.items():
        if base_type(TensorPlan(name, shape)) is None:
            count[kind.name] += math.prod(shape)
    return count.most_common(1)[0][0] if count else None


def fault_of(drafter: DrafterView) -> EncodingFault | None:
    """The fault of a file, None also for what states no encoding."""
    number = drafter.keys.integer(KEY)
    if number is None or not drafter.types or drafter.own("expert_count") in drafter.keys:
        return None  # stages with experts keep the types of their checkpoint
    tensors = {name: (shape, drafter.types[name]) for name, shape in drafter.tensors.items() if name in drafter.types}
    return encoding_fault(number, tensors, imatrix="quantize.imatrix.file" in drafter.keys)


def check_encoding(drafter: DrafterView) -> Iterator[Finding]:
    """A warning: llama.cpp runs the file, but cards, names and releases call it what it is not."""
    fault = fault_of(drafter)
    if fault is not None:
        cure = f"the header says {fault.stated}: convert or quantize the file again"
        yield warning(
            "file-type", f"{KEY} {drafter.keys.integer(KEY)} ({fault.stated})", f"tensors: {fault.found}", cure
        )

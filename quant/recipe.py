"""llama-quantize's recipe as data: which tensor of a drafter gets which type (llama-quant.cpp of llama.cpp).

Holds for the dense architectures dflash and eagle3; llama.cpp's rules for mixtures of experts, Falcon and the 70B
Llama concern no drafter and are left out, except that a stack of matrices is MXFP4 under MXFP4_MOE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .errors import RecipeError
from .types import TYPES

# file type -> number in general.file_type (llama.h); the last four are other spellings
FTYPES: dict[str, int] = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "Q2_K_S": 21,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
    "MXFP4_MOE": 38,
    "Q3_K": 12,
    "Q4_K": 15,
    "Q5_K": 17,
    "MXFP4": 38,
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}

# rows that do not fill blocks of 256 take a type with blocks of 32, and F16 when those do not fit either
_FALLBACK = {
    "IQ4_XS": "IQ4_NL",
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}

# a weight whose name contains one of these is never quantized
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
)
_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")

# the parts of a model that the mixes tell apart, in the order they are looked for
_CATEGORIES = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_output.weight", "attn_output"),
    ("ffn_down", "ffn_down"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one tensor: ``type`` is None when it stays as it is.

    ``fallback_from`` is the type that the tensor's rows did not fit, else None.
    """

    name: str
    type: str | None
    reason: str
    fallback_from: str | None = None


@dataclass(slots=True)
class _State:
    """What the rules look at: the mix, the sizes of the model, and how many tensors of a kind have been seen."""

    ftype: str
    n_layer: int
    n_attn_v: int
    gqa: int
    imatrix: bool
    tied: bool
    seen: dict[str, int] = field(default_factory=lambda: {"attn_v": 0, "ffn_down": 0})


def default_type(ftype: str) -> str:
    """The type most tensors of a file get: Q4_K for Q4_K_M, MXFP4 for MXFP4_MOE."""
    name = ftype_name(ftype)
    if name == "MXFP4_MOE":
        return "MXFP4"
    return re.sub(r"_[SML]$", "", name)


def ftype_name(ftype: str) -> str:
    """The full name of a file type, upper case: Q4_K_M for q4_k; RecipeError for an unknown one."""
    name = ftype.upper()
    if name not in FTYPES:
        raise RecipeError(f"unknown file type {ftype!r}; there are {', '.join(FTYPES)}")
    return _ALIASES.get(name, name)


def assign(
    tensors: Sequence[tuple[str, Sequence[int]]],
    ftype: str,
    *,
    pure: bool = False,
    output_type: str | None = None,
    token_embedding_type: str | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    n_layer: int | None = None,
    gqa: int | None = None,
    imatrix: bool = False,
) -> list[Decision]:
    """Decide every tensor, in the order given, exactly as llama-quantize does with the same options.

    ``tensors`` are names and shapes (numpy order, the row last) of the whole file: some rules count. ``overrides``
    are (regular expression, type); the first whose expression is found in the name wins, expressions are put in
    lower case. ``n_layer`` (block_count) is else the highest block number + 1; ``gqa`` (query heads per key head)
    else the ratio of the rows of blk.0.attn_q and blk.0.attn_k. ``imatrix`` says whether weights are at hand.
    Errors: RecipeError for an unknown type, options the file type cannot take, rows an explicit type does not fit.
    """
    name = ftype_name(ftype)
    rules = [(_compiled(pattern), _known(kind)) for pattern, kind in overrides]
    embedding = None if token_embedding_type is None else _known(token_embedding_type)
    output = None if output_type is None else _known(output_type)
    if rules and default_type(name) in ("F32", "F16", "BF16"):
        raise RecipeError(f"tensor overrides have no effect on a file of {name}")
    shapes = {tensor: tuple(shape) for tensor, shape in tensors}
    state = _state(name, shapes, n_layer, gqa, imatrix)
    decided: dict[str, Decision] = {}
    for tensor in sorted(shapes, key=visit_order):
        decided[tensor] = _decide(tensor, shapes[tensor], state, rules, embedding, output, pure)
    return [decided[tensor] for tensor, _ in tensors]


def visit_order(name: str) -> tuple[int, str]:
    """llama-quantize visits tensors outside the blocks first, then block by block, each by name."""
    found = re.match(r"blk\.(\d+)", name)
    return (int(found.group(1)) if found else -1, name)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.lower())
    except re.error as error:
        raise RecipeError(f"{pattern!r} is not a regular expression: {error}") from None


def _known(kind: str) -> str:
    name = kind.upper()
    if name not in TYPES:
        raise RecipeError(f"unknown tensor type {kind!r}; there are {', '.join(TYPES)}")
    return name


def _state(
    ftype: str, shapes: dict[str, tuple[int, ...]], n_layer: int | None, gqa: int | None, imatrix: bool
) -> _State:
    if n_layer is None:
        n_layer = max((visit_order(name)[0] for name in shapes), default=-1) + 1
    if gqa is None:
        q, k = shapes.get("blk.0.attn_q.weight"), shapes.get("blk.0.attn_k.weight")
        gqa = q[0] // k[0] if q and k else 1
    n_attn_v = sum(category(name) == "attn_v" for name in shapes)
    return _State(ftype, n_layer, n_attn_v, gqa, imatrix, tied="output.weight" not in shapes)


def category(name: str) -> str:
    """The part of the model that the mixes know a tensor as: output, token_embd, attn_v, … or other."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((kind for part, kind in _CATEGORIES if part in name), "other")


def quantizable(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is a weight matrix of more than one row that llama-quantize would touch."""
    if not any(n > 1 for n in shape[:-1]) or not name.endswith("weight"):
        return False
    return name not in _KEPT_WHOLE and not any(part in name for part in _KEPT)


def _decide(
    name: str,
    shape: tuple[int, ...],
    state: _State,
    rules: Sequence[tuple[re.Pattern[str], str]],
    embedding: str | None,
    output: str | None,
    pure: bool,
) -> Decision:
    if not quantizable(name, shape):
        return Decision(name, None, "not a matrix of weights")
    kind = category(name)
    base = default_type(state.ftype)
    override = next((wanted for pattern, wanted in rules if pattern.search(name)), None)
    named = name == "per_layer_token_embd.weight" and override is not None
    if embedding is not None and kind == "token_embd" and not named:
        return _explicit(name, shape, embedding, "token embedding type")
    if output is not None and kind == "output":
        return _explicit(name, shape, output, "output tensor type")
    if base in ("F32", "F16", "BF16"):
        return Decision(name, base, "file type")
    if override is not None:
        wanted, reason = override, "override"
    elif pure:
        wanted, reason = base, "pure"
    else:
        wanted, reason = _mixed(kind, shape, base, state, output)
    decision = _fitted(name, shape, wanted, reason)
    if state.ftype == "Q2_K_S" and decision.type == "Q2_K" and not state.imatrix and kind not in _ENDS:
        raise RecipeError(f"{name} as Q2_K in a file of Q2_K_S needs importance weights")
    return decision


_ENDS = ("output", "token_embd")


def _explicit(name: str, shape: tuple[int, ...], wanted: str, reason: str) -> Decision:
    block = TYPES[wanted].block
    if shape[-1] % block:
        raise RecipeError(f"{name} has rows of {shape[-1]}, which do not fill the blocks of {block} of {wanted}")
    return Decision(name, wanted, reason)


def _fitted(name: str, shape: tuple[int, ...], wanted: str, reason: str) -> Decision:
    k = shape[-1]
    if k % TYPES[wanted].block == 0:
        return Decision(name, wanted, reason)
    other = _FALLBACK.get(wanted, wanted)
    if k % TYPES[other].block:
        other = "F16"
    return Decision(name, other, f"rows of {k} do not fit {wanted}", fallback_from=wanted)


def _mixed(kind: str, shape: tuple[int, ...], base: str, state: _State, output: str | None) -> tuple[str, str]:
    """The type that the mix gives a tensor, and why."""
    if kind == "output" or (kind == "token_embd" and state.tied):
        if output is not None:
            return output, "output tensor type (tied embeddings)"
        return _head(shape[-1], base, state.ftype), "output" if kind == "output" else "tied embeddings"
    if state.ftype == "MXFP4_MOE":
        stacked = len(shape) > 2 and shape[-3] > 1
        return ("MXFP4", "stack of matrices") if stacked else ("Q8_0", "not a stack of matrices")
    if kind not in _MIXES:
        return base, "file type"
    index = state.seen.get(kind, 0)
    if kind in state.seen:
        state.seen[kind] = index + 1
    wanted = _MIXES[kind](index, state)
    return (base, "file type") if wanted is None else (wanted, f"{kind} in {state.ftype}")


def _head(k: int, base: str, ftype: str) -> str:
    """The output matrix: Q8_0 if the file is or the rows do not fit, else Q6_K."""
    if ftype == "MXFP4_MOE" or base == "Q8_0" or k % TYPES[base].block:
        return "Q8_0"
    return "Q6_K"


def _more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _attn_v(i: int, s: _State) -> str | None:
    many = s.gqa >= 4
    if s.ftype == "Q2_K":
        return "Q4_K" if many else "Q3_K"
    if s.ftype == "Q2_K_S":
        return "Q4_K" if many else None
    if s.ftype == "Q3_K_M":
        return "Q5_K" if i < 2 else "Q4_K"
    if s.ftype == "Q3_K_L":
        return "Q5_K"
    if s.ftype in ("IQ4_NL", "IQ4_XS"):
        return "Q5_K" if many else None
    if s.ftype in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _more_bits(i, s.n_attn_v) else None
    if s.ftype == "Q4_K_S":
        return "Q5_K" if i < 4 else None
    return None


def _ffn_down(i: int, s: _State) -> str | None:
    early = i < s.n_layer // 8
    if s.ftype == "Q2_K":
        return "Q3_K"
    if s.ftype == "Q2_K_S":
        return "Q4_K" if early else None
    if s.ftype == "Q3_K_M":
        return "Q5_K" if i < s.n_layer // 16 else "Q4_K"
    if s.ftype == "Q3_K_L":
        return "Q5_K"
    if s.ftype in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _more_bits(i, s.n_layer) else None
    if s.ftype in ("IQ4_NL", "IQ4_XS"):
        return "Q5_K" if early and not s.imatrix else None
    if s.ftype == "Q4_K_S":
        return "Q5_K" if early else None
    if s.ftype in ("Q4_0", "Q5_0"):
        return f"{s.ftype[:-1]}1" if early and s.imatrix else None
    return None


def _attn_output(i: int, s: _State) -> str | None:
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(s.ftype)


_MIXES: dict[str, Callable[[int, _State], str | None]] = {
    "attn_v": _attn_v,
    "ffn_down": _ffn_down,
    "attn_output": _attn_output,
}

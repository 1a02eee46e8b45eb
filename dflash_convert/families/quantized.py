"""Quantized checkpoints: which tensors belong together, what their values' shape is, what is refused by name.

The pairs are found by name and checked by shape; config.json only names the scheme and the block size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.drafter import Weight
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.jsonfile import read_json
from dflash_convert.notes import Note

EIGHT_BIT = ("F8_E4M3", "F8_E5M2")
FLOATS = ("BF16", "F16", "F32", "F64")
MX_SCALES = ("U8", "F8_E8M0")
# schemes whose integers cannot be read as they are: method or format -> how people call it
REFUSED = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "bitsandbytes": "bitsandbytes",
    "pack-quantized": "compressed-tensors pack-quantized (packed integers)",
    "int-quantized": "compressed-tensors int-quantized (int8)",
    "marlin-24": "compressed-tensors marlin-24",
    "hqq": "HQQ",
    "aqlm": "AQLM",
    "eetq": "EETQ int8",
    "quanto": "quanto",
    "torchao": "torchao",
}
ACTIVATION = (
    ".input_scale",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".input_global_scale",
    ".input_amax",
    ".pre_quant_scale",
)
PREQUANT = ".pre_quant_scale"
TIP = "take the bf16 release of the drafter, or dequantize it with the tool that made it"


class Loaded(NamedTuple):
    """The weights of a checkpoint, and (tensor, reason) of what is not one."""

    weights: list[Weight]
    skipped: list[tuple[str, str]]


def logical_weights(checkpoint: Checkpoint, notes: list[Note]) -> Loaded:
    """Join packed tensors with their scales; FamilyError names a scheme that cannot be dequantized."""
    tensors = checkpoint.tensors
    config = quantization_config(checkpoint)
    _refuse_scheme(config, tensors, notes)
    used: set[str] = set()
    weights: list[Weight] = []
    skipped: list[tuple[str, str]] = []
    for tensor in tensors.values():
        weight = _join(tensor, tensors, config)
        used.update(s.name for s in weight.sources) if weight else None
        if weight is not None:
            weights.append(weight)
    for name in tensors:
        if name in used:
            continue
        if not name.endswith(ACTIVATION):
            raise FamilyError(f"{tensors[name].file.name}: tensor {name!r} is a scale without its weight", tip=TIP)
        skipped.append((name, "a scale of activations, which are not quantized here"))
    schemes = sorted({weight.scheme.split("/")[0] for weight in weights if weight.scheme})
    if schemes:
        notes.append(Note("info", f"{' and '.join(schemes)} weights are dequantized while they stream"))
    return Loaded(weights, skipped)


def quantization_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """quantization_config or compression_config of config.json, else hf_quant_config.json's quantization."""
    for name in ("quantization_config", "compression_config", "quantization"):
        value = checkpoint.config.get(name)
        if isinstance(value, dict):
            return value
    path = checkpoint.directory / "hf_quant_config.json"
    value = read_json(path).get("quantization") if path.is_file() else None
    return value if isinstance(value, dict) else {}


def _refuse_scheme(config: Mapping[str, Any], tensors: Mapping[str, SourceTensor], notes: list[Note]) -> None:
    """FamilyError for a scheme that the tensors show; a label alone was inherited from the target's config.json."""
    names = [str(config.get(field, "")).lower() for field in ("quant_method", "format", "quant_algo")]
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else []:
        names.append(str(group.get("format", "")).lower() if isinstance(group, dict) else "")
    scheme = next((REFUSED[name] for name in names if name in REFUSED), None)
    if scheme is not None and not any(map(_is_quantized, tensors.values())):
        text = f"config.json says that the weights are quantized with {scheme}, and they are not: its target's words?"
        notes.append(Note("warning", f"{text} The tensors count"))
        scheme = None
    suffixes = {name.rpartition(".")[2] for name in tensors}
    if scheme is None and "qweight" in suffixes:
        scheme = "AWQ or GPTQ (qweight)"
    if scheme is None and "scales" in suffixes and "biases" in suffixes:
        scheme = "MLX (scales and biases)"
    integer = next((t for t in tensors.values() if t.dtype in ("I8", "I32") and t.name.endswith(_WEIGHTS)), None)
    if scheme is None and integer is not None:
        scheme = f"integer ({integer.dtype})"
    if scheme is None and any(name.endswith(PREQUANT) for name in tensors):
        scheme = "AWQ by ModelOpt (pre_quant_scale)"
    if scheme is not None:
        raise FamilyError(f"the checkpoint is quantized with {scheme}, which is not dequantized here", tip=TIP)


_WEIGHTS = (".weight", ".weight_packed")
# what quantizers add to a tensor's name, whatever its dtype
_PARTS = re.compile(
    r"[._](qweight|qzeros|scales?|biases|g_idx|weight_(packed|shape|scale\w*|zero_point|global_scale)|absmax|quant_map|"
    r"quant_state\.\w+|nested_absmax|SCB|W_q|codes|codebooks|qdata|_data|_scale|pre_quant_scale)$"
)


def _is_quantized(tensor: SourceTensor) -> bool:
    """A matrix without fractions, or a part of one; what maps tokens (d2t, t2d) is a list."""
    return (tensor.dtype not in FLOATS and len(tensor.shape) > 1) or _PARTS.search(tensor.name) is not None


def _join(tensor: SourceTensor, tensors: Mapping[str, SourceTensor], config: Mapping[str, Any]) -> Weight | None:
    """The weight that starts with ``tensor``; None for a tensor that belongs to another one."""
    name = tensor.name
    if name.endswith("_blocks"):
        return _mx_blocks(tensor, tensors)
    if name.endswith(".weight_packed"):
        return _packed(tensor, name.removesuffix("_packed"), tensors)
    if name.endswith(".weight") and tensor.dtype == "U8":
        return _packed(tensor, name, tensors)
    if tensor.dtype in EIGHT_BIT and not _is_scale(name):
        return _eight_bit(tensor, tensors, config)
    if _is_scale(name) or name.endswith(ACTIVATION):
        return None
    return Weight(name, tensor.shape, (tensor,))


def _is_scale(name: str) -> bool:
    return name.endswith(
        (".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", "_scales", ".weight.scale")
    )


def _need(name: str, of: SourceTensor, tensors: Mapping[str, SourceTensor], dtypes: tuple[str, ...]) -> SourceTensor:
    scale = tensors.get(name)
    if scale is None or scale.dtype not in dtypes:
        found = f"is {scale.dtype}" if scale else "is missing"
        raise FamilyError(
            f"{of.file}: tensor {of.name!r} is {of.dtype} and its scale {name!r} {found}, so its values are not known",
            tip=TIP,
        )
    return scale


def _packed(tensor: SourceTensor, name: str, tensors: Mapping[str, SourceTensor]) -> Weight:
    """Two E2M1 values a byte: NVFP4 (16 values a scale, second scale) or MXFP4 (32 values a scale)."""
    rows, half = tensor.shape if len(tensor.shape) == 2 else (0, 0)
    columns = 2 * half
    scale = _need(f"{name}_scale", tensor, tensors, ("F8_E4M3", *MX_SCALES))
    if scale.dtype in MX_SCALES:
        _check_scales(scale, (rows, columns // 32), tensor)
        return Weight(name, (rows, columns), (tensor, scale), "mxfp4", (1, 32))
    _check_scales(scale, (rows, columns // 16), tensor)
    for suffix, scheme in (("_scale_2", "nvfp4"), ("_global_scale", "nvfp4/divided")):
        second = tensors.get(name + suffix)
        if second is not None:
            _check_scalar(second)
            return Weight(name, (rows, columns), (tensor, scale, second), scheme, (1, 16))
    raise FamilyError(
        f"{tensor.file}: tensor {tensor.name!r} is NVFP4 but has neither weight_scale_2 nor weight_global_scale",
        tip=TIP,
    )


def _mx_blocks(tensor: SourceTensor, tensors: Mapping[str, SourceTensor]) -> Weight:
    """X_blocks [rows, n, 16] with X_scales [rows, n] (gpt-oss)."""
    stem = tensor.name.removesuffix("_blocks")
    scale = _need(f"{stem}_scales", tensor, tensors, MX_SCALES)
    if len(tensor.shape) != 3 or tensor.shape[2] != 16 or tensor.dtype != "U8":
        raise CheckpointError(f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, not MXFP4's")
    rows, blocks, _ = tensor.shape
    _check_scales(scale, (rows, blocks), tensor)
    name = stem if stem.endswith(".weight") else stem + ".weight"
    return Weight(name, (rows, 32 * blocks), (tensor, scale), "mxfp4", (1, 32))


def _eight_bit(tensor: SourceTensor, tensors: Mapping[str, SourceTensor], config: Mapping[str, Any]) -> Weight:
    if len(tensor.shape) != 2:
        raise CheckpointError(f"{tensor.file}: tensor {tensor.name!r} is FP8 but not a matrix")
    name = next((tensor.name + s for s in ("_scale_inv", "_scale") if tensor.name + s in tensors), "")
    scale = _need(name or tensor.name + "_scale", tensor, tensors, (*FLOATS, *MX_SCALES))
    rows, columns = tensor.shape
    block = _scale_block(tensor, scale, config)
    _check_scales(scale, (-(-rows // block[0]), -(-columns // block[1])), tensor)
    return Weight(tensor.name, tensor.shape, (tensor, scale), "fp8", block)


def _scale_block(tensor: SourceTensor, scale: SourceTensor, config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    rows, columns = tensor.shape
    count = math.prod(scale.shape)
    if count == 1:
        return rows, columns
    if scale.shape in ((rows,), (rows, 1)):
        return 1, columns
    stated = _stated_block(config)
    if stated is not None:
        return stated
    if len(scale.shape) == 2 and scale.shape[0] == rows and columns % max(scale.shape[1], 1) == 0:
        return 1, columns // scale.shape[1]
    raise FamilyError(
        f"config.json: quantization_config names no weight_block_size for the scales {list(scale.shape)} of "
        f"{tensor.name!r} {list(tensor.shape)}",
        tip=TIP,
    )


def _stated_block(config: Mapping[str, Any]) -> tuple[int, int] | None:
    found = [config.get("weight_block_size")]
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else []:
        inner = group.get("weights") if isinstance(group, dict) else None
        found.append(inner.get("block_structure") if isinstance(inner, dict) else None)
    for block in found:
        if isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block):
            return block[0], block[1]
    return None


def _check_scales(scale: SourceTensor, expected: tuple[int, int], of: SourceTensor) -> None:
    count = math.prod(scale.shape)
    if count != expected[0] * expected[1] or count == 0:
        raise CheckpointError(
            f"{scale.file}: tensor {scale.name!r} has shape {list(scale.shape)}, {of.name!r} needs "
            f"{list(expected)} scales"
        )


def _check_scalar(scale: SourceTensor) -> None:
    if scale.nbytes != 4 or scale.dtype != "F32":
        raise CheckpointError(f"{scale.file}: tensor {scale.name!r} is not one float32 number")

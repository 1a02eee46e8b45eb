"""Values of quantized checkpoint tensors, row by row: FP8, NVFP4 and MXFP4 with their scales.

Formats: OCP FP8 and MX (E4M3, E5M2, E2M1, E8M0); ModelOpt's and compressed-tensors' NVFP4; the scale layouts
of DeepSeek (``weight_scale_inv``), compressed-tensors (``weight_scale``) and ModelOpt.  One scale serves
``block`` rows and columns; the values are code x scale in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_convert.checkpoint import DTYPE_BYTES, Reader, SourceTensor
from dflash_convert.drafter import TensorPlan
from dflash_convert.errors import CheckpointError
from quant import from_bf16

Array = npt.NDArray[Any]

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def _e4m3() -> Array:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value = np.where(codes & 127 == 127, np.nan, value)
    return np.where(codes & 128, -value, value).astype(np.float32)


def _e5m2() -> Array:
    result: Array = (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    return result


def _e8m0() -> Array:
    """2^(code - 127); code 255 is NaN.  The smallest is a float32 subnormal."""
    value = np.ldexp(np.ones(256), np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)


E4M3, E5M2, E8M0 = _e4m3(), _e5m2(), _e8m0()
BYTE_TABLES = {"F8_E4M3": E4M3, "F8_E5M2": E5M2, "F8_E8M0": E8M0, "U8": E8M0}


def decode_rows(reader: Reader, plan: TensorPlan, start: int, stop: int) -> Array:
    """float32 [stop - start, row length] of a plan with a ``scheme``; its sources are codes, then scales."""
    columns = plan.shape[-1]
    codes, scale, *rest = plan.sources
    values = _codes(reader, codes, columns, start, stop, packed=plan.scheme != "fp8")
    scales = _scales(reader, scale, plan, start, stop)
    if rest:
        factor = _scalar(reader, rest[0])
        # ModelOpt's second scale multiplies, compressed-tensors' global scale divides
        scales = scales * factor if plan.scheme == "nvfp4" else scales / factor
    with np.errstate(invalid="ignore"):
        result: Array = values * scales
    return result


def stacked_blocks(reader: Reader, plan: TensorPlan, start: int, stop: int) -> Array:
    """MXFP4 blocks of GGUF, uint8 [stop - start, 17 bytes for 32 values], of matrices stacked outermost.

    Sources are codes and exponents of one matrix after the other, from matrix ``argument`` on.  Only bits
    move: a block is its exponent and 16 bytes, the j-th with value j in its low and value j + 16 in its high half;
    a source byte holds neighbours.
    """
    rows, columns = plan.shape[-2:]
    result = np.empty((stop - start, columns // 32, 17), dtype=np.uint8)
    for at in range(start // rows, -(-stop // rows)):
        first, last = max(start - at * rows, 0), min(stop - at * rows, rows)
        codes, scale = plan.sources[2 * (at - plan.argument) :][:2]
        raw = np.empty((last - first, columns // 32, 16), dtype=np.uint8)
        reader.into(codes, first * (columns // 2), raw.reshape(-1).data)
        exponents = np.empty((last - first, columns // 32), dtype=np.uint8)
        reader.into(scale, first * (columns // 32), exponents.reshape(-1).data)
        early, late = raw[:, :, :8], raw[:, :, 8:]
        part = result[at * rows + first - start : at * rows + last - start]
        part[:, :, 0] = exponents
        part[:, :, 1::2] = (early & 15) | (late << 4)
        part[:, :, 2::2] = (early >> 4) | (late & 240)
    return result.reshape(stop - start, -1)


def _codes(reader: Reader, source: SourceTensor, columns: int, start: int, stop: int, *, packed: bool) -> Array:
    width = columns // 2 if packed else columns
    raw = np.empty((stop - start, width), dtype=np.uint8)
    reader.into(source, start * width, raw.reshape(-1).data)
    if not packed:
        return BYTE_TABLES[source.dtype][raw]
    pairs = np.empty((stop - start, width, 2), dtype=np.float32)
    pairs[:, :, 0] = E2M1[raw & 15]
    pairs[:, :, 1] = E2M1[raw >> 4]
    return pairs.reshape(stop - start, columns)


def _scales(reader: Reader, source: SourceTensor, plan: TensorPlan, start: int, stop: int) -> Array:
    """[stop - start, columns or 1] scales of the rows."""
    rows, columns = plan.block
    per_row = -(-plan.shape[-1] // columns)
    first, last = start // rows, -(-stop // rows)
    table = _numbers(reader, source, first * per_row, (last - first) * per_row).reshape(-1, per_row)
    chosen = table[np.arange(start, stop) // rows - first]
    return chosen if per_row == 1 else np.repeat(chosen, columns, axis=1)[:, : plan.shape[-1]]


def _scalar(reader: Reader, source: SourceTensor) -> Array:
    return _numbers(reader, source, 0, 1)[0]  # type: ignore[no-any-return]


def _numbers(reader: Reader, source: SourceTensor, first: int, count: int) -> Array:
    """``count`` scales from element ``first`` on, as float32."""
    size = DTYPE_BYTES[source.dtype]
    raw = np.empty(count * size, dtype=np.uint8)
    reader.into(source, first * size, raw.data)
    if source.dtype in BYTE_TABLES:
        return BYTE_TABLES[source.dtype][raw]
    if source.dtype == "BF16":
        return from_bf16(raw.view("<u2"))
    if source.dtype in ("F16", "F32", "F64"):
        return raw.view({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[source.dtype]).astype(np.float32)
    raise CheckpointError(f"{source.file}: tensor {source.name!r} is {source.dtype}, not a scale")

"""ggml's own C, from the libggml-python wheel, as the oracle; and the input classes that the kernels are tried on."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quant

libggml = pytest.importorskip("libggml", reason="needs libggml-python (pip install dflash-convert[dev])")

IDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39,
}  # fmt: skip

TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class Traits(ctypes.Structure):
    """The head of ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", TO_FLOAT),
    )


@cache
def library() -> ctypes.CDLL:
    found = next(Path(libggml.__file__).parent.rglob("libggml-base.so"))
    lib = ctypes.CDLL(str(found))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    lib.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return lib


def ggml_quantize(x: Any, name: str, imatrix: Any = None) -> Any:
    n, k = x.shape
    out = np.empty((n, quant.TYPES[name].row_nbytes(k)), np.uint8)
    weights = None if imatrix is None else imatrix.ctypes.data
    library().ggml_quantize_chunk(IDS[name], x.ctypes.data, out.ctypes.data, 0, n, k, weights)
    return out


def ggml_dequantize(data: Any, name: str, k: int) -> Any:
    if name == "F32":  # ggml has no conversion for it
        return data.view(np.float32)
    out = np.empty((len(data), k), np.float32)
    library().ggml_get_type_traits(IDS[name]).contents.to_float(data.ctypes.data, out.ctypes.data, out.size)
    return out


def inputs(k: int, n: int, seed: int = 0) -> dict[str, Any]:
    """Named float32 matrices [n, k] that reach the corners of the kernels."""
    r = np.random.default_rng(seed)
    f = np.float32
    x = r.standard_normal((n, k)).astype(f)
    spike = x * f(0.01)
    spike[np.arange(n), r.integers(0, k, n)] = -30000
    alternating = np.where(np.arange(k) % 2, f(0.7), f(-0.7)) * np.ones((n, 1), f)
    scales = np.exp2(r.integers(-30, 6, (n, -(-k // 16)))).repeat(16, axis=1)[:, :k]
    zeros = np.zeros((n, k), f)
    zeros[:, ::3] = -0.0
    return {
        "normal": x,
        "weights": x * f(0.02),
        "uniform": r.uniform(-1, 1, (n, k)).astype(f),
        "positive": r.uniform(0.5, 1, (n, k)).astype(f),
        "negative": r.uniform(-1, -0.5, (n, k)).astype(f),
        "bf16": ((x.view(np.uint32) >> 16) << 16).view(f),
        "constant": np.full((n, k), 0.37, f),
        "constant_negative": np.full((n, k), -0.37, f),
        "zeros": np.zeros((n, k), f),
        "negative_zeros": np.full((n, k), -0.0, f),
        "both_zeros": zeros,
        "ties": (r.integers(-254, 255, (n, k)) * f(0.5)).astype(f),
        "small_ties": (r.integers(-16, 17, (n, k)) * f(0.0625)).astype(f),
        "subnormal": (x * f(1e-40)).astype(f),
        "near_subnormal": (x * f(1e-38)).astype(f),
        "below_epsilon": x * f(1e-15),
        "half_subnormal": x * f(3e-8),
        "outlier": spike,
        "alternating": alternating,
        "alternating_negative": -alternating,
        "signs": r.choice(np.array([-0.5, 0.5], f), (n, k)),
        "sparse": np.where(r.random((n, k)) < 0.03, x, f(0)).astype(f),
        "sparse_negative_zero": np.where(r.random((n, k)) < 0.03, np.abs(x), f(-0.0)).astype(f),
        "mixed_scales": (x * np.exp2(r.integers(-20, 6, (n, k)))).astype(f),
        "block_scales": (x * scales).astype(f),
    }

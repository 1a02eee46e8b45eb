"""The handful of operations both models are made of; float32 in, float32 out.

They follow ggml's CPU kernels where the order of operations shows: sums of squares in double,
rotation angles by repeated float32 multiplication.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]

YARN_BETA_FAST = 32.0  # llama.cpp reads no beta keys for dflash or qwen3: these are its defaults
YARN_BETA_SLOW = 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding in NeoX layout over the first ``dims`` components of a head.

    ``kind`` is the GGUF's ``rope.scaling.type`` (none, linear, yarn); ``sections`` are M-RoPE's, of which a
    text token uses (position, position, position, 0).
    """

    base: float
    dims: int
    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    sections: tuple[int, ...] = ()


ONE: F32 = np.ones((), np.float32)


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last axis; no weight means the bare norm."""
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64).astype(np.float32)
    out: F32 = x * (ONE / np.sqrt(mean + np.asarray(eps, np.float32)))
    return out if weight is None else out * weight


def linear(x: F32, weight: F32) -> F32:
    """``x [n, in]`` times a weight stored as ``[out, in]``."""
    out: F32 = x @ weight.T
    return out


def silu(x: F32) -> F32:
    with np.errstate(over="ignore"):  # exp(-x) may reach inf; x / inf is the right limit
        out: F32 = x / (ONE + np.exp(-x))
    return out


def gelu(x: F32) -> F32:
    """The tanh form, which ggml means by GELU."""
    inner: F32 = np.float32(math.sqrt(2 / math.pi)) * x * (ONE + np.float32(0.044715) * x * x)
    out: F32 = np.float32(0.5) * x * (ONE + np.tanh(inner))
    return out


def sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):
        out: F32 = ONE / (ONE + np.exp(-x))
    return out


def softmax(x: F32, sinks: F32 | None = None) -> F32:
    """Over the last axis; ``sinks`` (broadcast to ``[..., 1]``) take part in the sum and get no output."""
    top = x.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    e = np.exp(x - top)
    total = e.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    out: F32 = e / total
    return out


def log_softmax(x: F32) -> F32:
    """Over the last axis."""
    shifted = x - x.max(axis=-1, keepdims=True)
    out: F32 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return out


def _yarn_ramp(rope: Rope) -> F32:
    """1 where a dimension extrapolates (short wavelength), 0 where it interpolates. ``[dims/2]``"""

    def corrected(rotations: float) -> float:
        return rope.dims * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0.0, math.floor(corrected(YARN_BETA_FAST)))
    high = min(rope.dims - 1.0, math.ceil(corrected(YARN_BETA_SLOW)))
    y = (np.arange(rope.dims // 2, dtype=np.float32) - np.float32(low)) / np.float32(max(0.001, high - low))
    out: F32 = ONE - np.clip(y, 0, 1)
    return out


def rope_table(rope: Rope, positions: Ids, freqs: F32 | None = None) -> tuple[F32, F32]:
    """(cos, sin), each ``[n, dims/2]``; ``freqs`` are the divisors of a ``rope_freqs`` tensor."""
    half = rope.dims // 2
    steps = np.full((len(positions), half), np.power(np.float32(rope.base), np.float32(-2.0 / rope.dims)), np.float32)
    steps[:, 0] = positions
    angle: F32 = np.multiply.accumulate(steps, axis=1, dtype=np.float32)
    if len(rope.sections) == 4 and rope.sections[3]:
        sector = np.arange(half) % sum(rope.sections)
        angle[:, sector >= sum(rope.sections[:3])] = 0  # the fourth position of a text token is 0
    if freqs is not None:
        angle = angle / freqs[:half]
    scale = np.float32(rope.attn_factor)
    if rope.kind != "none" and rope.factor != 1.0:
        stretched = angle * np.float32(1.0 / rope.factor)
        if rope.kind == "yarn":
            ramp = _yarn_ramp(rope)
            angle = stretched * (ONE - ramp) + angle * ramp
            scale *= np.float32(1 + 0.1 * math.log(max(rope.factor, 1.0)))
        else:
            angle = stretched
    return np.cos(angle) * scale, np.sin(angle) * scale


def rotate(x: F32, table: tuple[F32, F32]) -> F32:
    """``x [n, heads, head_dim]`` rotated pairwise (i, i + dims/2); components past ``dims`` pass through."""
    cos, sin = (t[:, None, :] for t in table)
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half :]], axis=-1)


def attention(
    q: F32, k: F32, v: F32, scale: float, mask: NDArray[np.bool_] | None = None, sinks: F32 | None = None
) -> F32:
    """Grouped-query attention: ``q [n, heads, d]`` over ``k, v [m, kv_heads, d]`` -> ``[n, heads · d]``.

    ``mask [n, m]`` is True where a query may look; ``sinks [heads]`` are extra logits without a value.
    """
    n, heads, dim = q.shape
    m, kv_heads, _ = k.shape
    group = heads // kv_heads
    rows = q.reshape(n, kv_heads, group, dim).transpose(1, 2, 0, 3).reshape(kv_heads, group * n, dim)
    scores = (rows @ k.transpose(1, 2, 0)).reshape(kv_heads, group, n, m) * np.float32(scale)
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf))
    weights = softmax(scores, None if sinks is None else sinks.reshape(kv_heads, group, 1, 1))
    out = weights.reshape(kv_heads, group * n, m) @ v.transpose(1, 0, 2)
    return out.reshape(kv_heads, group, n, dim).transpose(2, 0, 1, 3).reshape(n, heads * dim)


def top_gap(scores: F32) -> float:
    """Distance between the best and the second-best score: how near a draft was to another token."""
    best = np.partition(scores, -2)[-2:]
    return float(best[1] - best[0])


class KVCache:
    """Keys and values of every layer for positions 0 … ``length`` - 1; ``[length, kv_heads, head_dim]`` each.

    ``half`` rounds what is stored to float16, as llama.cpp's default cache does.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, *, half: bool = False) -> None:
        self.length = 0
        self._half = half
        self._data: list[Any] = [np.empty((2, 0, kv_heads, head_dim), np.float32) for _ in range(layers)]

    def round(self, x: F32) -> F32:
        return x.astype(np.float16).astype(np.float32) if self._half else x

    def view(self, layer: int, start: int, k: F32, v: F32) -> tuple[F32, F32]:
        """Rows 0 … ``start`` - 1 followed by ``k`` and ``v``, which are stored but count only after `advance`."""
        end = start + len(k)
        data = self._data[layer]
        if data.shape[1] < end:
            grown = np.empty((2, max(end, 2 * data.shape[1]), *data.shape[2:]), np.float32)
            grown[:, :start] = data[:, :start]
            self._data[layer] = data = grown
        data[0, start:end] = self.round(k)
        data[1, start:end] = self.round(v)
        return data[0, :end], data[1, :end]

    def advance(self, rows: int) -> None:
        self.length += rows

    def truncate(self, length: int) -> None:
        self.length = min(self.length, length)

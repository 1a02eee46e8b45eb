"""A dense Qwen3-type target: grouped-query attention, q/k norms, NeoX rotation, tied or untied head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_convert.errors import ContainerError, PairingError, UsageError
from dflash_convert.forward import ops
from dflash_convert.forward.hyper import TargetHyper
from dflash_convert.forward.ops import F32, KVCache


class Target:
    """Weights by GGUF name (float32, ``[out, in]``); ``half_cache`` as in :class:`Drafter`."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], hyper: TargetHyper, *, half_cache: bool = False) -> None:
        self.weights, self.hyper, self._half = weights, hyper, half_cache
        self.embed: F32 = self.tensor("token_embd.weight")
        self.head: F32 = weights.get("output.weight", self.embed)

    def tensor(self, name: str) -> F32:
        try:
            return self.weights[name]
        except KeyError:
            raise ContainerError(f"the target lacks tensor {name}, which the forward pass needs") from None

    def new_cache(self) -> KVCache:
        h = self.hyper
        return KVCache(h.layers, h.kv_heads, h.head_dim, half=self._half)

    def forward(self, ids: Sequence[int], cache: KVCache, taps: Sequence[int] = ()) -> tuple[F32, F32]:
        """Run ``ids`` after ``cache``: (logits ``[n, vocab]``, features ``[n, taps · hidden]``).

        A tap ``k`` is the input of layer ``k``, up to the output of the last layer before the final norm.
        """
        self._check(ids, taps)
        h = self.hyper
        start, n = cache.length, len(ids)
        table = ops.rope_table(h.rope, np.arange(start, start + n, dtype=np.int64))
        mask = np.arange(start, start + n)[:, None] >= np.arange(start + n)[None, :] if n > 1 else None
        x = self.embed[list(ids)].astype(np.float32)
        inputs = []
        for layer in range(h.layers):
            inputs.append(x)
            x = self._layer(layer, x, cache, table, mask)
        inputs.append(x)
        cache.advance(n)
        logits = ops.linear(ops.rms_norm(x, self.tensor("output_norm.weight"), h.eps), self.head)
        features = [inputs[tap] for tap in taps]
        return logits, np.concatenate(features, axis=1) if features else np.empty((n, 0), np.float32)

    def _check(self, ids: Sequence[int], taps: Sequence[int]) -> None:
        if not ids:
            raise UsageError("the prompt has no tokens")
        outside = [i for i in ids if not 0 <= i < len(self.embed)]
        if outside:
            raise UsageError(f"token id {outside[0]} lies outside the target's {len(self.embed)} embedding rows")
        wrong = [t for t in taps if not 0 <= t <= self.hyper.layers]
        if wrong:
            raise PairingError(f"tap {wrong[0]} lies outside the target's {self.hyper.layers} layers")

    def _layer(self, layer: int, x: F32, cache: KVCache, table: tuple[F32, F32], mask: NDArray[np.bool_] | None) -> F32:
        h, p, n = self.hyper, f"blk.{layer}.", len(x)
        normed = ops.rms_norm(x, self.tensor(p + "attn_norm.weight"), h.eps)
        q = ops.linear(normed, self.tensor(p + "attn_q.weight")).reshape(n, h.heads, h.head_dim)
        k = ops.linear(normed, self.tensor(p + "attn_k.weight")).reshape(n, h.kv_heads, h.head_dim)
        v = ops.linear(normed, self.tensor(p + "attn_v.weight")).reshape(n, h.kv_heads, h.head_dim)
        q = ops.rotate(ops.rms_norm(q, self.tensor(p + "attn_q_norm.weight"), h.eps), table)
        k = ops.rotate(ops.rms_norm(k, self.tensor(p + "attn_k_norm.weight"), h.eps), table)
        keys, values = cache.view(layer, cache.length, k, v)
        out = ops.attention(q, keys, values, 1.0 / math.sqrt(h.head_dim), mask)
        x = x + ops.linear(out, self.tensor(p + "attn_output.weight"))
        normed = ops.rms_norm(x, self.tensor(p + "ffn_norm.weight"), h.eps)
        gate = ops.silu(ops.linear(normed, self.tensor(p + "ffn_gate.weight")))
        up = ops.linear(normed, self.tensor(p + "ffn_up.weight"))
        return x + ops.linear(gate * up, self.tensor(p + "ffn_down.weight"))


def generate_greedy(target: Target, prompt: Sequence[int], n_predict: int, stop: Sequence[int] = ()) -> list[int]:
    """``n_predict`` tokens after ``prompt`` one by one, ending early behind a token of ``stop``."""
    cache = target.new_cache()
    logits, _ = target.forward(prompt, cache)
    out = [int(logits[-1].argmax())]
    while len(out) < n_predict and out[-1] not in stop:
        logits, _ = target.forward(out[-1:], cache)
        out.append(int(logits[-1].argmax()))
    return out[:n_predict]

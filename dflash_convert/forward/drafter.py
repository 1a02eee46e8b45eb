"""The drafter's forward pass: DFlash, DFlash2 and DSpark, as llama.cpp's runtime computes them.

Context enters once per committed position: ``g = RMSNorm(fc · features)``, from which every layer's keys and
values are made.  A draft is one pass over ``[last token, MASK, …]`` whose queries see the whole context and,
unless the model is causal, the whole block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_convert.errors import ContainerError, PairingError, UsageError
from dflash_convert.forward import ops
from dflash_convert.forward.heads import Draft, greedy, markov_walk, selector_walk
from dflash_convert.forward.hyper import DrafterHyper
from dflash_convert.forward.ops import F32, KVCache
from dflash_convert.llama import DFLASH

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Block:
    """One pass: ``hidden [b, hidden]`` after the final norm, ``logits [b, vocab]`` before any head's bias."""

    hidden: F32
    logits: F32


class Drafter:
    """Weights by GGUF name (float32, ``[out, in]``; ``d2t`` integer) and hyper-parameters, ready to draft.

    ``embed`` and ``head`` (``[vocab, hidden]``) are the target's, used when the drafter brings none.  For a
    drafter with embeddings but no head the runtimes differ: the pinned build takes its embeddings as the head
    (``embeddings_as_head``), b11549 the target's head, as the official implementation does.  ``half_cache``
    rounds keys and values to float16, llama.cpp's default cache type; the official implementation keeps float32.
    """

    def __init__(
        self,
        weights: Weights,
        hyper: DrafterHyper,
        *,
        embed: F32 | None = None,
        head: F32 | None = None,
        half_cache: bool = False,
        embeddings_as_head: bool = False,
    ) -> None:
        self.weights, self.hyper, self._half = weights, hyper, half_cache
        own = weights.get("token_embd.weight")
        self.embed = embed if own is None else own
        # without any other head the embeddings serve in every build
        self.head = weights.get("output.weight", own if embeddings_as_head or head is None else head)
        self.variant = DFLASH.variant(weights)
        self.is_dspark, self.is_dflash2 = (self.variant.family == name for name in ("DSpark", "DFlash2"))
        self._scale = hyper.attention_scale or 1.0 / math.sqrt(hyper.head_dim)
        self._check()

    @property
    def max_drafts(self) -> int:
        """block_size - 1 drafts a step; block_size when the anchor's own position predicts."""
        return self.variant.max_drafts(self.hyper.block_size, self.hyper.sample_from_anchor)

    @property
    def first_slot(self) -> int:
        """The block position that predicts the first draft."""
        return self.variant.first_slot(self.hyper.sample_from_anchor)

    def _check(self) -> None:
        hyper = self.hyper
        fc = self.tensor("fc.weight")
        wanted = (hyper.hidden, len(hyper.target_layers) * hyper.hidden)
        if fc.shape != wanted:
            raise ContainerError(f"fc.weight is {list(fc.shape)}, {len(hyper.target_layers)} taps need {list(wanted)}")
        for name, table in (("token_embd", self.embed), ("output", self.head)):
            if table is not None and table.shape[1] != hyper.hidden:
                raise PairingError(
                    f"{name}.weight has rows of {table.shape[1]}, the drafter's hidden size is {hyper.hidden}"
                )
        if self.is_dflash2 and not (hyper.conv_kernel and hyper.conv_group and hyper.selector_top_k):
            raise ContainerError("a selector without conv_kernel_size, conv_group_size and selector_top_k keys")

    def tensor(self, name: str) -> F32:
        try:
            return self.weights[name]
        except KeyError:
            raise ContainerError(f"the drafter lacks tensor {name}, which the forward pass needs") from None

    def new_cache(self) -> KVCache:
        h = self.hyper
        return KVCache(h.layers, h.kv_heads, h.head_dim, half=self._half)

    def encode(self, features: F32) -> F32:
        """Target features ``[n, taps · hidden]`` to the fused context ``g [n, hidden]``."""
        return ops.rms_norm(
            ops.linear(features, self.tensor("fc.weight")), self.tensor("enc.output_norm.weight"), self.hyper.eps
        )

    def inject(self, cache: KVCache, features: F32) -> None:
        """Append the keys and values of committed positions to ``cache``."""
        g = self.encode(features)
        table = self._table(cache.length, len(g))
        for layer in range(self.hyper.layers):
            cache.view(layer, cache.length, *self._key_value(layer, g, table))
        cache.advance(len(g))

    def block(self, cache: KVCache, token: int, size: int) -> Block:
        """One pass over ``[token, MASK × (size - 1)]`` at the positions after ``cache``, which is left as it was."""
        return self.blocks(cache, {cache.length: token}, size)[cache.length]

    def blocks(self, cache: KVCache, anchors: Mapping[int, int], size: int) -> dict[int, Block]:
        """The same at several positions of one context: ``anchors`` maps a position to its token.

        Each block sees the context before its position only. All blocks go through a layer before the next
        layer's weights are touched. Rows of ``cache`` behind the first anchor are overwritten.
        """
        embed = self._embeddings(size)
        # from the last to the first: a block overwrites cached rows that only later blocks look at
        starts = sorted(anchors, reverse=True)
        x = {n: embed[[anchors[n]] + [self.hyper.mask_token] * (size - 1)].astype(np.float32) for n in starts}
        if self.hyper.embedding_scale:
            x = {n: rows * np.float32(self.hyper.embedding_scale) for n, rows in x.items()}
        tables = {n: self._table(n, size) for n in starts}
        for layer in range(self.hyper.layers):
            x = {n: self._layer(layer, x[n], cache, n, tables[n]) for n in starts}
        norm = self.tensor("output_norm.weight")
        hidden = {n: ops.rms_norm(rows, norm, self.hyper.eps) for n, rows in x.items()}
        return {n: Block(rows, self._logits(rows)) for n, rows in hidden.items()}

    def _embeddings(self, size: int) -> F32:
        if self.embed is None or self.head is None:
            raise UsageError("the drafter has no embeddings or head of its own", tip="give it the target's tensors")
        mask = self.hyper.mask_token
        if size > 1 and not 0 <= mask < len(self.embed):
            raise PairingError(f"mask token {mask} lies outside the {len(self.embed)} embedding rows")
        return self.embed

    def draft(self, cache: KVCache, token: int, n_max: int) -> Draft:
        """Up to ``n_max`` greedy drafts after ``token``, each with its distance to the runner-up."""
        size = min(n_max, self.max_drafts) + self.first_slot
        return self.read(self.block(cache, token, size), token)

    def read(self, block: Block, token: int) -> Draft:
        """The drafts that a block after ``token`` makes."""
        if self.is_dflash2:
            return selector_walk(self.weights, block.hidden, block.logits, token, self.hyper.selector_top_k)
        if self.is_dspark:
            return markov_walk(self.weights, block.hidden, block.logits, token, self.first_slot)
        return greedy(block.logits[self.first_slot :])

    def _table(self, start: int, n: int) -> tuple[F32, F32]:
        positions = np.arange(start, start + n, dtype=np.int64)
        return ops.rope_table(self.hyper.rope, positions, self.weights.get("rope_freqs.weight"))

    def _key_value(self, layer: int, x: F32, table: tuple[F32, F32]) -> tuple[F32, F32]:
        h, p = self.hyper, f"blk.{layer}."
        shape = (len(x), h.kv_heads, h.head_dim)
        k = ops.linear(x, self.tensor(p + "attn_k.weight")).reshape(shape)
        value = self.weights.get(p + "attn_v.weight")
        # without a value projection the keys serve, normed without a weight and not rotated
        v = ops.rms_norm(k, None, h.eps) if value is None else ops.linear(x, value).reshape(shape)
        return ops.rotate(ops.rms_norm(k, self.tensor(p + "attn_k_norm.weight"), h.eps), table), v

    def _mask(self, layer: int, start: int, n: int) -> NDArray[np.bool_] | None:
        window = self.hyper.window if self.hyper.windowed and self.hyper.windowed[layer] else 0
        if not window and not self.hyper.causal:
            return None
        distance = np.arange(start, start + n)[:, None] - np.arange(start + n)[None, :]
        seen = np.ones(distance.shape, np.bool_)
        if window:
            seen &= distance < window
        if self.hyper.causal:
            seen &= distance >= 0
        return seen

    def _attend(self, layer: int, x: F32, cache: KVCache, start: int, table: tuple[F32, F32]) -> F32:
        h, p = self.hyper, f"blk.{layer}."
        q = ops.linear(x, self.tensor(p + "attn_q.weight")).reshape(len(x), h.heads, h.head_dim)
        q = ops.rotate(ops.rms_norm(q, self.tensor(p + "attn_q_norm.weight"), h.eps), table)
        k, v = cache.view(layer, start, *self._key_value(layer, x, table))
        mask = self._mask(layer, start, len(x))
        out = ops.attention(q, k, v, self._scale, mask, self.weights.get(p + "attn_sinks.weight"))
        out = ops.linear(out, self.tensor(p + "attn_output.weight"))
        return out * np.float32(h.value_scale) if h.value_scale else out

    def _feed_forward(self, layer: int, x: F32) -> F32:
        p = f"blk.{layer}."
        act = ops.silu if self.hyper.activation == "silu" else ops.gelu
        gate = act(ops.linear(x, self.tensor(p + "ffn_gate.weight")))
        return ops.linear(gate * ops.linear(x, self.tensor(p + "ffn_up.weight")), self.tensor(p + "ffn_down.weight"))

    def _layer(self, layer: int, x: F32, cache: KVCache, start: int, table: tuple[F32, F32]) -> F32:
        p, eps = f"blk.{layer}.", self.hyper.eps
        normed = ops.rms_norm(x, self.tensor(p + "attn_norm.weight"), eps)
        before, after = self._conv(p + "attn", normed)
        out = after(self._attend(layer, before, cache, start, table))
        x = x + self._post_norm(p + "post_attention_norm.weight", out)
        normed = ops.rms_norm(x, self.tensor(p + "ffn_norm.weight"), eps)
        before, after = self._conv(p + "ffn", normed)
        out = after(self._feed_forward(layer, before))
        x = x + self._post_norm(p + "post_ffw_norm.weight", out)
        scale = self.weights.get(p + "layer_output_scale.weight")
        return x if scale is None else x * scale

    def _post_norm(self, name: str, x: F32) -> F32:
        weight = self.weights.get(name)
        return x if weight is None else ops.rms_norm(x, weight, self.hyper.eps)

    def _conv(self, prefix: str, x: F32) -> tuple[F32, Any]:
        """DFlash2: the input convolved, and the function that convolves the output; the identity without one.

        Both kernels come from the same projection of the un-convolved input ``x [b, hidden]``.
        """
        projection = self.weights.get(prefix + "_conv_proj.weight")
        if projection is None:
            return x, lambda y: y
        base = self.tensor(prefix + "_conv_base")  # [2, kernel, hidden]
        h = self.hyper
        dynamic = ops.linear(x, projection).reshape(len(x), 2, h.conv_kernel, h.hidden // h.conv_group)
        kernel = np.repeat(dynamic, h.conv_group, axis=-1) + base
        return causal_conv(x, kernel[:, 0]), lambda y: causal_conv(y, kernel[:, 1])

    def _logits(self, hidden: F32) -> F32:
        head = self.head
        if head is None:  # block() has refused this already
            raise UsageError("the drafter has no head")
        h = self.hyper
        logits = ops.linear(hidden, head)
        if self.is_dflash2:  # only the selector sees scaled logits; elsewhere scaling cannot change the order
            if h.logit_scale:
                logits = logits * np.float32(h.logit_scale)
            if h.softcap > 0:
                logits = np.tanh(logits * np.float32(1.0 / h.softcap)) * np.float32(h.softcap)
        d2t = self.weights.get("d2t")
        if d2t is None or self.embed is None:
            return logits
        full = np.full((len(hidden), len(self.embed)), -np.inf, np.float32)
        full[:, d2t.astype(np.int64)] = logits
        return full


def causal_conv(x: F32, kernel: F32) -> F32:
    """``out[t] = Σ_tap kernel[t, tap] · x[t - tap]`` inside the block.

    ``x [b, hidden]``, ``kernel [b, taps, hidden]``.
    """
    out = kernel[:, 0] * x
    for tap in range(1, min(kernel.shape[1], len(x))):
        out[tap:] += kernel[tap:, tap] * x[:-tap]
    return out

"""Single mistakes in a right file of any family: keys, taps, tensors, vocabulary, map, encoding.

A mutation changes keys and tensors in place; it raises :class:`AbsentError` when the file has nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from verify_files import Keys, Tensors

from dflash_convert.container.types import KV, TensorType, ValueType, array, boolean, f32, string, u32

Change = Callable[[Keys, Tensors], None]


class AbsentError(Exception):
    """The file has no such key or tensor."""


def full(keys: Keys, name: str) -> str:
    known = name.startswith(("general.", "tokenizer.", "dflash_convert."))
    return name if known else f"{keys['general.architecture'].value}.{name}"


def held(keys: Keys, name: str) -> KV:
    found = keys.get(full(keys, name))
    if found is None:
        raise AbsentError(name)
    return found


def times(name: str, factor: float) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        kv = held(keys, name)
        if kv.item is not None:
            keys[kv.name] = KV(kv.name, kv.type, [int(value * factor) for value in kv.value], kv.item)
        else:
            value = kv.value * factor if kv.type is ValueType.FLOAT32 else int(kv.value * factor)
            keys[kv.name] = KV(kv.name, kv.type, value)

    return change


def plus(name: str, step: int) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        kv = held(keys, name)
        if kv.item is not None:
            keys[kv.name] = KV(kv.name, kv.type, [value + step for value in kv.value], kv.item)
        else:
            keys[kv.name] = KV(kv.name, kv.type, kv.value + step)

    return change


def without(name: str) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        del keys[held(keys, name).name]

    return change


def flipped(name: str) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        kv = held(keys, name)
        keys[kv.name] = boolean(kv.name, not kv.value)

    return change


def added(kv: KV, needs: str = "block_count") -> Change:
    """A key that the file must not have yet."""

    def change(keys: Keys, tensors: Tensors) -> None:
        held(keys, needs)
        name = full(keys, kv.name)
        if name in keys:
            raise AbsentError(f"not {name}")
        keys[name] = KV(name, kv.type, kv.value, kv.item)

    return change


def put(kv: KV) -> Change:
    """Another value for a key that is there."""

    def change(keys: Keys, tensors: Tensors) -> None:
        name = held(keys, kv.name).name
        keys[name] = KV(name, kv.type, kv.value, kv.item)

    return change


def taps(edit: Callable[[list[int]], list[int]]) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        kv = held(keys, "target_layers")
        keys[kv.name] = array(kv.name, ValueType.INT32, edit(list(kv.value)))

    return change


# --- tensors ----------------------------------------------------------------------------------------------------


def named(tensors: Tensors, part: str) -> str:
    found = next((name for name in tensors if part in name), None)
    if found is None:
        raise AbsentError(part)
    return found


def floats(part: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Other values in the first F32 tensor whose name contains ``part``, in the same shape."""

    def change(keys: Keys, tensors: Tensors) -> None:
        name = named(tensors, part)
        shape, kind, data = tensors[name]
        assert kind is TensorType.F32
        values = edit(np.frombuffer(data, np.float32).reshape(shape).copy())
        tensors[name] = (shape, kind, np.ascontiguousarray(values, np.float32).tobytes())

    return change


def turned(values: np.ndarray) -> np.ndarray:
    """Transposed, read on in the old shape: what a loader of the other order makes of it."""
    return np.ascontiguousarray(values.T).reshape(values.shape)


def reshaped(part: str) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        name = named(tensors, part)
        shape, kind, data = tensors[name]
        if len(shape) != 2 or shape[0] == shape[1]:
            raise AbsentError(part)
        values = np.frombuffer(data, np.float32).reshape(shape)
        tensors[name] = (shape[::-1], kind, np.ascontiguousarray(values.T).tobytes())

    return change


def swapped(one: str, other: str) -> Change:
    """Two tensors of the same shape in each other's place."""

    def change(keys: Keys, tensors: Tensors) -> None:
        a, b = named(tensors, one), named(tensors, other)
        if tensors[a][0] != tensors[b][0] or a == b:
            raise AbsentError(f"{one} and {other}")
        tensors[a], tensors[b] = tensors[b], tensors[a]

    return change


def dropped(part: str) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        del tensors[named(tensors, part)]

    return change


def extra(keys: Keys, tensors: Tensors) -> None:
    tensors["blk.0.attn_q.bias"] = ((4,), TensorType.F32, bytes(16))


def renamed(part: str, old: str, new: str) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        name = named(tensors, part)
        tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def half_norm(keys: Keys, tensors: Tensors) -> None:
    """A norm in F16, which no tool of llama.cpp writes."""
    name = named(tensors, "output_norm.weight")
    shape, _, data = tensors[name]
    tensors[name] = (shape, TensorType.F16, np.frombuffer(data, np.float32).astype(np.float16).tobytes())


def one_row(values: np.ndarray) -> np.ndarray:
    values[len(values) // 2] = 0
    return values


def one_bit(values: np.ndarray) -> np.ndarray:
    values.reshape(-1).view(np.uint32)[7] ^= 1
    return values


def one_nan(values: np.ndarray) -> np.ndarray:
    values.reshape(-1)[3] = np.nan
    return values


def draft_map(edit: Callable[[np.ndarray], np.ndarray], kind: TensorType = TensorType.I64) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        shape, _, data = tensors[named(tensors, "d2t")]
        ids = edit(np.frombuffer(data, "<i8").copy())
        tensors["d2t"] = (shape, kind, ids.astype("<i8" if kind is TensorType.I64 else "<i4").tobytes())

    return change


def at(index: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def edit(ids: np.ndarray) -> np.ndarray:
        ids[index] = value
        return ids

    return edit


# --- vocabulary ---------------------------------------------------------------------------------------------------


def listed(name: str, edit: Callable[[list], None]) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        kv = held(keys, f"tokenizer.ggml.{name}")
        items = list(kv.value)
        edit(items)
        keys[kv.name] = array(kv.name, kv.item or ValueType.STRING, items)

    return change


def swap(i: int, j: int) -> Callable[[list], None]:
    def edit(items: list) -> None:
        items[i], items[j] = items[j], items[i]

    return edit


def replace(i: int, value: object) -> Callable[[list], None]:
    def edit(items: list) -> None:
        items[i] = value

    return edit


def pop(items: list) -> None:
    items.pop()


SECTIONS = array("rope.dimension_sections", ValueType.INT32, [11, 11, 10, 0])


def mutations() -> Iterator[tuple[str, Change]]:
    """Every mutation with its name; a family has those that apply to it."""
    yield from _sizes()
    yield from _behaviour()
    yield from _tensors()
    yield from _vocabulary()


def _sizes() -> Iterator[tuple[str, Change]]:
    yield "one layer more", plus("block_count", 1)
    yield "one layer less", plus("block_count", -1)
    for name in ("embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"):
        yield f"{name} x 2", times(name, 2)
    for name in ("attention.key_length", "attention.value_length"):
        yield f"{name} x 2", times(name, 2)
    yield "target_hidden_size x 2", times("target_hidden_size", 2)
    yield "embedding_length_out x 2", times("embedding_length_out", 2)
    yield "vocab_size + 8", plus("vocab_size", 8)
    yield "prediction layers - 1", plus("nextn_predict_layers", -1)
    for name in ("conv_kernel_size", "conv_group_size", "selector_rank"):
        yield f"{name} x 2", times(name, 2)
    yield "selector_top_k x 16", times("selector_top_k", 16)
    yield "selector_top_k / 2", times("selector_top_k", 0.5)
    yield "no selector_top_k", without("selector_top_k")


def _behaviour() -> Iterator[tuple[str, Change]]:
    yield "context / 2", times("context_length", 0.5)
    yield "context x 2", times("context_length", 2)
    yield "no block", without("block_size")
    yield "block of 1", put(u32("block_size", 1))
    yield "block x 2", times("block_size", 2)
    yield "taps + 1", plus("target_layers", 1)
    yield "taps - 1", plus("target_layers", -1)
    yield "taps reversed", taps(lambda layers: layers[::-1])
    yield "a tap lost", taps(lambda layers: layers[:-1])
    yield "a tap twice", taps(lambda layers: [layers[0], *layers[:-1]])
    yield "a tap behind the target", taps(lambda layers: [*layers[:-1], 99])
    yield "no taps", without("target_layers")
    yield "rope base x 10", times("rope.freq_base", 10)
    yield "no rope base", without("rope.freq_base")
    yield "rope base of windows x 10", times("rope.freq_base_swa", 10)
    yield "M-RoPE", added(SECTIONS, needs="block_size")
    yield "rotated dimensions", added(u32("rope.dimension_count", 32))
    yield "rotated dimensions / 2", times("rope.dimension_count", 0.5)
    yield "epsilon x 10", times("attention.layer_norm_rms_epsilon", 10)
    yield "embedding scale", added(f32("embedding_scale", 11.3), needs="block_size")
    yield "logit scale", added(f32("logit_scale", 0.5), needs="block_size")
    yield "causal", added(boolean("attention.causal", True), needs="block_size")
    yield "causality flipped", flipped("attention.causal")
    yield "a window", added(u32("attention.sliding_window", 32), needs="block_size")
    yield "window / 8", times("attention.sliding_window", 0.125)
    yield "no window", without("attention.sliding_window")
    yield "no window pattern", without("attention.sliding_window_pattern")
    yield "activation unknown", added(string("hidden_activation", "relu"), needs="block_size")
    yield "activation gelu", added(string("hidden_activation", "gelu"), needs="block_size")
    yield "slot rule", flipped("sample_from_anchor")
    yield "confidence promise", flipped("has_confidence_head")
    yield "norm before residual", flipped("norm_before_residual")
    yield "norm before fc", flipped("norm_before_fc")
    yield "shared layers", plus("attention.shared_kv_layers", -1)
    yield "architecture", put(string("general.architecture", "qwen3"))
    yield "file type Q8_0", put(u32("general.file_type", 7))
    yield "file type Q4_K_M", put(u32("general.file_type", 15))


def _tensors() -> Iterator[tuple[str, Change]]:
    for part in ("fc.weight", "attn_q.weight", "ffn_down.weight", "output_norm.weight", "markov_w2", "pre_projection"):
        yield f"{part} x 0.999", floats(part, lambda values: values * np.float32(0.999))
    for part in ("attn_output.weight", "ffn_up.weight", "selector_successor"):
        yield f"{part} turned", floats(part, turned)
        yield f"{part} transposed", reshaped(part)
    yield "gate and up swapped", swapped("blk.0.ffn_gate", "blk.0.ffn_up")
    yield "norms swapped", swapped("blk.0.attn_norm.weight", "blk.0.ffn_norm")
    yield "layers swapped", swapped("blk.0.ffn_down", "blk.1.ffn_down")
    yield "keys and values swapped", swapped("blk.0.attn_k.weight", "blk.0.attn_v.weight")
    yield "Markov tables swapped", swapped("markov_w1", "markov_w2")
    yield "codebooks swapped", swapped("selector_predecessor", "selector_successor")
    yield "embeddings and head swapped", swapped("token_embd", "output.weight")
    for part in ("blk.0.ffn_norm", "fc.weight", "output_norm", "blk.0.attn_q.weight", "conf_proj.weight"):
        yield f"{part} lost", dropped(part)
    yield "a head lost", dropped("output.weight")
    yield "a bias", extra
    yield "another name", renamed("blk.0.ffn_up", "ffn_up", "ffn_upper")
    yield "a norm in F16", half_norm
    yield "rows negated", floats("blk.0.attn_q.weight", lambda values: -values)
    yield "norms of one", floats("norm.weight", lambda values: np.ones_like(values))
    yield "a row of zeros", floats("blk.0.ffn_down", one_row)
    yield "one bit", floats("blk.0.ffn_gate", one_bit)
    yield "one NaN", floats("blk.0.ffn_gate", one_nan)
    yield "d2t negative", draft_map(at(3, -1))
    yield "d2t out of range", draft_map(at(3, 4096))
    yield "d2t twice", draft_map(at(3, 0))
    yield "d2t another token", draft_map(at(-1, 511))
    yield "d2t absolute ids taken for offsets", draft_map(lambda ids: ids + np.arange(ids.size))
    yield "d2t I32", draft_map(lambda ids: ids, TensorType.I32)


def _vocabulary() -> Iterator[tuple[str, Change]]:
    yield "two tokens swapped", listed("tokens", swap(300, 301))
    yield "a token's text", listed("tokens", replace(300, "another"))
    yield "a token lost", listed("tokens", pop)
    yield "a token's type", listed("token_type", replace(300, 3))
    yield "two merges swapped", listed("merges", swap(3, 4))
    yield "a merge lost", listed("merges", pop)
    yield "tokenizer model", put(string("tokenizer.ggml.model", "llama"))
    yield "pre-tokenizer", put(string("tokenizer.ggml.pre", "llama-bpe"))
    yield "another eos", put(u32("tokenizer.ggml.eos_token_id", 7))
    yield "another bos", put(u32("tokenizer.ggml.bos_token_id", 7))
    yield "mask a word", put(u32("tokenizer.ggml.mask_token_id", 300))
    yield "mask out of range", put(u32("tokenizer.ggml.mask_token_id", 512))
    yield "mask is eos", put(u32("tokenizer.ggml.mask_token_id", 502))
    yield "no mask", without("tokenizer.ggml.mask_token_id")
    yield "no vocabulary", without("tokenizer.ggml.tokens")

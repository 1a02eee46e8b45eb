"""What the memory plan must know of a drafter or target: from a GGUF's keys, or from config.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dflash_convert import tensors
from dflash_convert.container.keys import Keys
from dflash_convert.container.types import TensorType, array_length, tensor_nbytes
from dflash_convert.errors import ConfigError
from dflash_convert.families.backbone import VALUES
from dflash_convert.hparams import Config
from dflash_convert.llama import DFLASH, MAX_LAYERS, WINDOW_PERIOD
from dflash_convert.memory.plan import CacheLayer, Model
from dflash_convert.notes import Note

Typed = tuple[tuple[int, ...], TensorType]
HOSTED = ("token_embd.weight", "per_layer_token_embd.weight")  # of the input layer, which no device takes
LINEAR_NOTE = Note("info", "linear-attention layers keep a small state of fixed size, which is not counted")


def weight_bytes(typed: Iterable[Typed]) -> int:
    """Bytes of (shape, type) pairs, shapes with the row last."""
    return sum(tensor_nbytes(kind, shape) for shape, kind in typed)


def model_from_keys(
    keys: Mapping[str, Any],
    typed: Mapping[str, Typed] | None = None,
    vocab: int = 0,
    source: str = "memory plan",
) -> Model:
    """From plain key values (a GGUF's or a plan's) and, for the weights, (shape, type) of every tensor by its name.

    ``vocab`` is the number of tokens; 0 takes the length of ``tokenizer.ggml.tokens``. ContainerError, which names
    ``source``, for missing keys. Layers of other kinds than attention (state-space, linear attention) hold no cells;
    a note says so.
    """
    arch = Keys(source, keys).text("general.architecture") or ""
    read = Keys(source, keys).under(arch)
    count = read.need("block_count", read.integer("block_count", low=0, high=MAX_LAYERS), "the number of layers")
    window = read.integer("attention.sliding_window", low=0) or 0
    notes: list[Note] = []
    pattern = _pattern(read, arch, count, window, notes)
    cached = count - (read.integer("attention.shared_kv_layers", low=0) or 0)
    every = read.integer("full_attention_interval", low=0) or 1
    if every > 1:
        notes.append(LINEAR_NOTE)
    layers = [_layer(read, i, pattern[i]) for i in range(cached) if (i + 1) % every == 0]
    feed_forward = read.per_layer("feed_forward_length", count) or []
    return Model(
        layers=tuple(layers),
        window=window,
        hidden=_width(read),
        feed_forward=max(feed_forward, default=0),
        vocab=vocab or array_length(keys.get("tokenizer.ggml.tokens")) or read.integer("vocab_size", low=0) or 0,
        context_length=read.integer("context_length", low=0) or 0,
        weights=None if typed is None else weight_bytes(typed.values()),
        embeddings=weight_bytes(typed[name] for name in HOSTED if name in typed) if typed else 0,
        reduced=typed["d2t"][0][-1] if typed and "d2t" in typed else 0,
        taps=array_length(read.value("target_layers")),
        notes=tuple(notes),
        own_selector=bool(read.integer("selector_rank", low=0)),
    )


def _width(read: Keys) -> int:
    return read.need("embedding_length", read.integer("embedding_length", low=0), "a whole number")


def _pattern(read: Keys, arch: str, count: int, window: int, notes: list[Note]) -> list[bool]:
    if not window:
        return [False] * count
    if arch == DFLASH.name and read.value("hyper_connection.count"):
        return [True] * count  # DeepSeek-V4 stages
    value = read.value("attention.sliding_window_pattern")
    if value is not None and not isinstance(value, int):
        flags = [bool(v) for v in read.integers("attention.sliding_window_pattern") or ()]
        if len(flags) < count:
            raise read.fail("attention.sliding_window_pattern", f"one flag for each of {count} layers")
        return flags
    every = value or WINDOW_PERIOD.get(arch)
    if not every:
        notes.append(Note("warning", f"which layers of {arch} are windowed is not known: all counted as full"))
        return [False] * count
    return [(i + 1) % every != 0 for i in range(count)]


def _layer(read: Keys, index: int, windowed: bool) -> CacheLayer:
    each = read.need("attention.head_count", read.per_layer("attention.head_count", index + 1), "a whole number")
    heads = each[index]
    kv_heads = (read.per_layer("attention.head_count_kv", index + 1) or each)[index]
    if not heads:
        return CacheLayer(0, 0, windowed)
    lengths = []
    for part in ("key", "value"):
        length = read.integer(f"attention.{part}_length", low=0)
        length = _width(read) // heads if length is None else length
        own = read.integer(f"attention.{part}_length_swa", low=0) if windowed else None
        lengths.append(length if own is None else own)
    k, v = lengths
    if read.value("attention.key_length_mla") is not None:
        v = 0  # latent attention: values are a view of the cached keys
    return CacheLayer(kv_heads * k, kv_heads * v, windowed)


# --- models from config.json -----------------------------------------------------------------------------------


def target_from_config(raw: Mapping[str, Any]) -> Model:
    """Caches and widths of a Hugging Face target from its config.json; its weights stay unknown.

    Knows per-layer windows (``layer_types``), Gemma 4's two head sizes (``global_head_dim``,
    ``num_global_key_value_heads``), latent attention, layers that share a cache and linear-attention layers.
    """
    config = Config(raw)
    hidden, heads = _need(config, "hidden_size"), _need(config, "num_attention_heads")
    kinds = config.strings("layer_types") or ["full_attention"] * _need(config, "num_hidden_layers")
    head_dim = config.integer("head_dim", low=1) or hidden // heads
    kv_heads = config.integer("num_key_value_heads", low=1) or heads
    own_window = config.boolean("use_sliding_window") is not False and "sliding_attention" in kinds
    window = (config.integer("sliding_window") or 0) if own_window else 0
    full = (config.integer("num_global_key_value_heads") or kv_heads) * (config.integer("global_head_dim") or head_dim)
    global_layer = CacheLayer(full, full)
    latent = config.integer("kv_lora_rank")
    if latent:  # one latent row, of which the values are a view
        global_layer = CacheLayer(latent + (config.integer("qk_rope_head_dim") or 0), 0)
    layers = []
    for kind in kinds[: len(kinds) - (config.integer("num_kv_shared_layers") or 0)]:
        if kind == "sliding_attention" and window:
            layers.append(CacheLayer(kv_heads * head_dim, kv_heads * head_dim, windowed=True))
        elif kind in ("full_attention", "sliding_attention"):
            layers.append(global_layer)
        elif kind != "linear_attention":
            raise config.fail("layer_types", kind, "full_attention, sliding_attention or linear_attention")
    return Model(
        layers=tuple(layers),
        window=window,
        hidden=hidden,
        feed_forward=config.integer("intermediate_size") or 0,
        vocab=_need(config, "vocab_size"),
        context_length=config.integer("max_position_embeddings") or 0,
        notes=(LINEAR_NOTE,) if "linear_attention" in kinds else (),
    )


def drafter_from_config(raw: Mapping[str, Any], encoding: str = "BF16", vocab: int = 0) -> Model:
    """A plain DFlash drafter without embeddings or head of its own, from its config.json alone, as ``encoding``.

    ``vocab`` is the target's number of tokens; 0 takes the drafter's ``vocab_size``. Norms are F32. For DFlash2,
    DSpark and drafters with their own tables use :func:`model_from_keys` with the conversion plan's tensors.
    """
    config = Config(raw)
    if config.integer("dflash_config.selector_rank", "markov_rank", "dflash_config.markov_rank"):
        raise ConfigError("config.json: a selector or Markov head has sizes that only the tensors tell")
    hidden, ff = _need(config, "hidden_size"), _need(config, "intermediate_size")
    heads, kv_heads = _need(config, "num_attention_heads"), _need(config, "num_key_value_heads")
    head_dim = config.integer("head_dim", low=1) or hidden // heads
    taps = config.integers("dflash_config.target_layer_ids", "target_layer_ids")
    taps = config.need(taps, "dflash_config.target_layer_ids", "target_layer_ids")
    count = _need(config, "num_hidden_layers")
    window, flags = _drafter_window(config, count)
    kv = kv_heads * head_dim
    sizes = {"H": hidden, "F": ff, "D": head_dim, "Q": heads * head_dim, "K": kv, "U": kv, "T": len(taps) * hidden}
    return Model(
        layers=tuple(CacheLayer(kv, kv, flag) for flag in flags),
        window=window,
        hidden=hidden,
        feed_forward=ff,
        vocab=vocab or _need(config, "vocab_size"),
        context_length=config.integer("max_position_embeddings") or 0,
        weights=weight_bytes(_plain_tensors(sizes, count, TensorType[encoding.upper()])),
        taps=len(taps),
    )


def _plain_tensors(sizes: Mapping[str, int], layers: int, kind: TensorType) -> Iterator[Typed]:
    """Shape and type of every tensor that such a drafter has: those no drafter lacks, and values."""
    table = {**tensors.FUSION, **tensors.ENDS, **tensors.BACKBONE}
    for name in (*tensors.needed(table), VALUES):
        shape = tuple(tensors.dimension(symbol, sizes) for symbol in tensors.symbols(table[name]))
        typed = (shape, kind if len(shape) > 1 else TensorType.F32)
        yield from [typed] * (layers if "{}" in name else 1)


def _drafter_window(config: Config, count: int) -> tuple[int, list[bool]]:
    if config.boolean("dflash_config.use_swa"):
        return config.need(config.integer("dflash_config.swa_window_size"), "swa_window_size"), [True] * count
    if not config.boolean("use_sliding_window"):
        return 0, [False] * count
    kinds = config.need(config.strings("layer_types"), "layer_types")
    if len(kinds) != count:
        raise config.fail("layer_types", kinds, f"{count} entries")
    window = config.need(config.integer("sliding_window"), "sliding_window")
    return window, [kind == "sliding_attention" for kind in kinds]


def _need(config: Config, name: str) -> int:
    return config.need(config.integer(name, low=1), name)

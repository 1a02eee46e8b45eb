"""What a pair will need at a context length, from metadata alone.

Exact, and checked against llama.cpp's logs and a published Gemma-4-12B run (context 163840): weights (the bytes of
the tensors), the KV cache and the sliding-window KV cache of drafter (640.00 and 136.00 MiB, weights 390.42) and
target (1360.00 and 765.00 MiB at q8_0), and the buffer that carries the tapped hidden states.

Estimates, and marked so: the compute buffers. The two that dominate are modelled (one micro-batch of logits,
the attention masks), which gives that run's drafter 519.50 MiB (519.50 on the device) and 176.00 (176.02 on the
host). The target's depend on graph details and on the build; they carry the largest uncertainty. With flash
attention off (-fa off) the score matrices come on top.

Newer builds sample drafts where the drafter runs (--spec-draft-backend-sampling, on by default in b11434; the
published run's b9850 did not), for which its graph holds the logits twice. Qwen3-8B's shapes, 152k tokens, on an
H200 with b11434: 610.08 MiB allocated, 602.08 planned. CUDA itself took another 600 MiB there.

Rules, from llama.cpp b11434: the context is padded to 256 cells; with ``-np auto`` four slots share one cache,
with an explicit ``-np N`` each slot has its own share; a window cache holds window x slots (x 1 for own
shares) plus one micro-batch, padded to 256; the drafter's context is the target's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_convert.container.types import BLOCK, TensorType, array_length, tensor_nbytes
from dflash_convert.errors import ConfigError, ContainerError, UsageError
from dflash_convert.hparams import MAX_LAYERS, Config
from dflash_convert.notes import Note

MIB = 1 << 20
CELL_PAD = 256
AUTO_SLOTS = 4
MAX_SLOTS = 256  # LLAMA_MAX_SEQ
MAX_CONTEXT = (1 << 31) - 1
CACHE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
# architectures whose GGUF has no per-layer pattern: every n-th layer is full (the runtime's own constants)
FIXED_PATTERN = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
LINEAR_NOTE = Note("info", "linear-attention layers keep a small state of fixed size, which is not counted")


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Elements of keys and values that one cell of one layer holds, and whether the layer is windowed."""

    k: int
    v: int
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """One side of the pair: cached layers, window, widths (elements), ``weights`` in bytes or None if unknown."""

    layers: tuple[CacheLayer, ...]
    window: int
    hidden: int
    feed_forward: int
    vocab: int
    context_length: int
    weights: int | None = None
    taps: int = 0
    notes: tuple[Note, ...] = ()
    own_selector: bool = False  # DFlash2 chooses its drafts inside its graph


@dataclass(frozen=True, slots=True)
class Request:
    """How the server will be started. ``ctx_size`` 0 is the target's trained context; ``parallel`` None is
    ``-np auto``. ``cache_k/v`` are the target's cache types, ``draft_cache_k/v`` the drafter's (keep f16)."""

    ctx_size: int = 0
    parallel: int | None = None
    cache_k: str = "F16"
    cache_v: str = "F16"
    draft_cache_k: str = "F16"
    draft_cache_v: str = "F16"
    n_max: int = 15
    batch: int = 2048
    micro_batch: int = 512

    @property
    def slots(self) -> int:
        return AUTO_SLOTS if self.parallel is None else self.parallel


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes one model needs; ``weights`` None when they cannot be told from what was given."""

    weights: int | None
    kv: int
    window_kv: int
    compute: int
    compute_host: int
    taps_host: int = 0
    sampling: int = 0

    @property
    def total(self) -> int:
        buffers = self.compute + self.sampling + self.compute_host + self.taps_host
        return (self.weights or 0) + self.kv + self.window_kv + buffers

    def json(self) -> dict[str, float | None]:
        return {
            "weights_mib": None if self.weights is None else mib(self.weights),
            "kv_mib": mib(self.kv),
            "swa_kv_mib": mib(self.window_kv),
            "compute_mib": mib(self.compute),
            "sampling_mib": mib(self.sampling),
            "compute_host_mib": mib(self.compute_host),
            "taps_host_mib": mib(self.taps_host),
            "total_mib": mib(self.total),
        }


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Both parts at ``ctx_size`` tokens over ``slots`` slots; ``target`` is None when only the drafter is known."""

    ctx_size: int
    slots: int
    unified: bool
    drafter: Part
    target: Part | None
    notes: tuple[Note, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        """What ``inspect --memory --json`` prints under ``memory``, sizes in MiB."""
        parts = [part for part in (self.drafter, self.target) if part]
        return {
            "ctx_size": self.ctx_size,
            "parallel": self.slots,
            "unified": self.unified,
            "drafter": self.drafter.json(),
            "target": self.target.json() if self.target else None,
            "total_mib": mib(sum(part.total for part in parts)),
            "notes": [note.text for note in self.notes],
        }


def mib(count: int) -> float:
    return round(count / MIB, 2)


def plan_memory(drafter: Model, target: Model | None, request: Request) -> MemoryPlan:
    """UsageError when the request cannot be carried out; what is merely unwise becomes a note."""
    request, notes = _resolve(drafter, target, request)
    for model in (drafter, target):
        notes += model.notes if model else ()
    notes.append(Note("info", "compute buffers are estimates (flash attention on); weights and caches are exact"))
    unified = request.parallel is None
    draft_part = _part(drafter, request, (request.draft_cache_k, request.draft_cache_v), request.micro_batch)
    if not drafter.own_selector:
        draft_part = replace(draft_part, sampling=(request.micro_batch + 1) * drafter.vocab * 4)
    target_part = None
    if target is not None:
        # the server asks for the logits of the last token and of every draft, slot by slot
        outputs = min(request.micro_batch, request.slots * (1 + request.n_max))
        target_part = _part(target, request, (request.cache_k, request.cache_v), outputs)
        taps = drafter.taps * target.hidden * min(request.batch, request.ctx_size) * 4
        target_part = replace(target_part, taps_host=taps)
        if target.weights is None:
            notes.append(Note("warning", "the target's weights are not counted: give its GGUF"))
    return MemoryPlan(request.ctx_size, request.slots, unified, draft_part, target_part, tuple(notes))


def _resolve(drafter: Model, target: Model | None, request: Request) -> tuple[Request, list[Note]]:
    """The request with its context and types filled in."""
    notes: list[Note] = []
    if not 0 <= request.ctx_size <= MAX_CONTEXT:
        raise UsageError(f"a context of {request.ctx_size} tokens is impossible", tip=f"give 0 to {MAX_CONTEXT}")
    if not 1 <= request.slots <= MAX_SLOTS:
        raise UsageError(f"{request.slots} parallel slots are impossible", tip=f"give 1 to {MAX_SLOTS}, or auto")
    if request.n_max < 1 or request.micro_batch < 1 or request.batch < 1:
        raise UsageError("n-max, batch and micro-batch sizes must be at least 1")
    trained = (target or drafter).context_length
    size = request.ctx_size or trained
    if size == 0:
        raise UsageError("the model does not say its context length", tip="give --ctx-size")
    size = _pad(size)
    if request.parallel is not None:
        size = _pad(size // request.slots) * request.slots
    share = size if request.parallel is None else size // request.slots
    for name, model in (("target", target), ("drafter", drafter)):
        if model and model.context_length and share > _pad(model.context_length):
            text = f"{share} cells a slot exceed the {name}'s trained context of {model.context_length}"
            notes.append(Note("warning", text))
    if size != request.ctx_size:
        notes.append(Note("derived", f"context {size}: padded as llama.cpp pads it"))
    draft_types = _cache_type(request.draft_cache_k), _cache_type(request.draft_cache_v)
    if draft_types != ("F16", "F16"):
        notes.append(Note("warning", "a quantized drafter cache was seen to cost nearly all acceptance: keep f16"))
    batch = min(request.batch, size)
    resolved = replace(
        request,
        ctx_size=size,
        batch=batch,
        micro_batch=min(batch, request.micro_batch),
        cache_k=_cache_type(request.cache_k),
        cache_v=_cache_type(request.cache_v),
        draft_cache_k=draft_types[0],
        draft_cache_v=draft_types[1],
    )
    return resolved, notes


def _cache_type(name: str) -> str:
    if name.upper() not in CACHE_TYPES:
        known = ", ".join(t.lower() for t in CACHE_TYPES)
        raise UsageError(f"{name} is not a cache type of llama.cpp", tip=f"it knows {known}")
    return name.upper()


def _pad(cells: int) -> int:
    return cells + -cells % CELL_PAD


def window_cells(request: Request, window: int) -> int:
    """Cells of a sliding-window cache, all slots together; never more than a full cache holds."""
    if request.parallel is None:
        return _pad(min(request.ctx_size, window * request.slots + request.micro_batch))
    share = request.ctx_size // request.slots
    return _pad(min(share, window + request.micro_batch)) * request.slots


def _row_bytes(elements: int, kind: str) -> int:
    block, size = BLOCK[TensorType[kind]]
    if elements % block:
        raise UsageError(f"a cache row of {elements} elements does not fill blocks of {block}", tip="use f16 or q8_0")
    return elements // block * size


def _part(model: Model, request: Request, types: tuple[str, str], outputs: int) -> Part:
    full, windowed = request.ctx_size, window_cells(request, model.window) if model.window else 0
    kv = window_kv = 0
    for layer in model.layers:
        row = _row_bytes(layer.k, types[0]) + _row_bytes(layer.v, types[1])
        if layer.windowed and model.window:
            window_kv += windowed * row
        else:
            kv += full * row
    n = request.micro_batch
    activations = n * model.hidden * 4
    compute = max(outputs * model.vocab * 4 + activations, n * 2 * model.feed_forward * 4 + 2 * activations)
    share = full if request.parallel is None else full // request.slots
    masks = 2 * n * (share + (windowed // (1 if request.parallel is None else request.slots)))
    return Part(model.weights, kv, window_kv, compute, masks + activations)


def weight_bytes(tensors: Iterable[tuple[tuple[int, ...], TensorType]]) -> int:
    """Bytes of (shape, type) pairs, shapes with the row last."""
    return sum(tensor_nbytes(kind, shape) for shape, kind in tensors)


# --- models from GGUF keys -------------------------------------------------------------------------------------


def model_from_keys(
    keys: Mapping[str, Any], tensors: Iterable[tuple[tuple[int, ...], TensorType]] | None = None, vocab: int = 0
) -> Model:
    """From plain key values (a GGUF's or a plan's) and, for the weights, (shape, type) of every tensor.

    ``vocab`` is the number of tokens; 0 takes the length of ``tokenizer.ggml.tokens``. ContainerError for missing
    keys. Layers of other kinds than attention (state-space, linear attention) hold no cells; a note says so.
    """
    arch = keys.get("general.architecture")
    read = _Keys(keys, arch if isinstance(arch, str) else "")
    count = read.integer("block_count")
    window = read.integer("attention.sliding_window", 0)
    notes: list[Note] = []
    pattern = _pattern(read, count, window, notes)
    cached = count - read.integer("attention.shared_kv_layers", 0)
    every = read.integer("full_attention_interval", 1)
    if every > 1:
        notes.append(LINEAR_NOTE)
    layers = [_layer(read, i, pattern[i]) for i in range(cached) if (i + 1) % every == 0]
    feed_forward = read.per_layer("feed_forward_length", count, 0)
    return Model(
        layers=tuple(layers),
        window=window,
        hidden=read.integer("embedding_length"),
        feed_forward=max(feed_forward, default=0),
        vocab=vocab or array_length(keys.get("tokenizer.ggml.tokens")) or read.integer("vocab_size", 0),
        context_length=read.integer("context_length", 0),
        weights=None if tensors is None else weight_bytes(tensors),
        taps=array_length(keys.get(f"{arch}.target_layers")),
        notes=tuple(notes),
        own_selector=read.integer("selector_rank", 0) > 0,
    )


class _Keys:
    def __init__(self, keys: Mapping[str, Any], arch: str) -> None:
        self.keys, self.arch = keys, arch

    def value(self, name: str) -> Any:
        return self.keys.get(f"{self.arch}.{name}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.value(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ContainerError(f"key {self.arch}.{name} is {value!r}, the memory plan needs a whole number")
        if name == "block_count" and value > MAX_LAYERS:
            raise ContainerError(f"key {self.arch}.{name} is {value}, more than {MAX_LAYERS} layers")
        return value

    def per_layer(self, name: str, count: int, default: int | None = None) -> list[int]:
        """A scalar for all layers, or one value each."""
        value = self.value(name)
        if value is None or isinstance(value, int):
            return [self.integer(name, default)] * count
        if not isinstance(value, Sequence) or not all(isinstance(v, int) and v >= 0 for v in value):
            raise ContainerError(f"key {self.arch}.{name} holds other things than whole numbers")
        items = list(value)
        if len(items) < count:
            raise ContainerError(f"key {self.arch}.{name} has {len(items)} values for {count} layers")
        return items


def _pattern(read: _Keys, count: int, window: int, notes: list[Note]) -> list[bool]:
    if not window:
        return [False] * count
    if read.arch == "dflash" and read.value("hyper_connection.count"):
        return [True] * count  # DeepSeek-V4 stages
    value = read.value("attention.sliding_window_pattern")
    if value is not None and not isinstance(value, int):
        flags = [bool(v) for v in value]
        if len(flags) < count:
            raise ContainerError(f"key {read.arch}.attention.sliding_window_pattern has {len(flags)} of {count} layers")
        return flags
    every = value or FIXED_PATTERN.get(read.arch)
    if not every:
        notes.append(Note("warning", f"which layers of {read.arch} are windowed is not known: all counted as full"))
        return [False] * count
    return [(i + 1) % every != 0 for i in range(count)]


def _layer(read: _Keys, index: int, windowed: bool) -> CacheLayer:
    heads = read.per_layer("attention.head_count", index + 1)[index]
    kv_heads = read.per_layer("attention.head_count_kv", index + 1, heads)[index]
    if not heads:
        return CacheLayer(0, 0, windowed)
    default = read.integer("embedding_length") // heads
    k, v = read.integer("attention.key_length", default), read.integer("attention.value_length", default)
    if windowed:
        k, v = read.integer("attention.key_length_swa", k), read.integer("attention.value_length_swa", v)
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
    q, kv = heads * head_dim, kv_heads * head_dim
    kind = TensorType[encoding.upper()]
    matrices = [(q, hidden), (kv, hidden), (kv, hidden), (hidden, q), (ff, hidden), (ff, hidden), (hidden, ff)]
    tensors: list[tuple[tuple[int, ...], TensorType]] = [((hidden, len(taps) * hidden), kind)]
    tensors += [(shape, kind) for shape in matrices] * count
    norms = [(hidden,)] * (2 * count + 2) + [(head_dim,)] * (2 * count)
    tensors += [(shape, TensorType.F32) for shape in norms]
    return Model(
        layers=tuple(CacheLayer(kv, kv, flag) for flag in flags),
        window=window,
        hidden=hidden,
        feed_forward=ff,
        vocab=vocab or _need(config, "vocab_size"),
        context_length=config.integer("max_position_embeddings") or 0,
        weights=weight_bytes(tensors),
        taps=len(taps),
    )


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

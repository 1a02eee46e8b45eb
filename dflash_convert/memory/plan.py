"""What a pair will need at a context length, from metadata alone.

Exact, and checked against llama.cpp's logs and a published Gemma-4-12B run (context 163840): weights (the bytes of
the tensors), the KV cache and the sliding-window KV cache of drafter (640.00 and 136.00 MiB, weights 390.42) and
target (1360.00 and 765.00 MiB at q8_0), and the buffer that carries the tapped hidden states.

Estimates, and marked so: the compute buffers. The two that dominate are modelled (one micro-batch of logits,
the attention masks), which gives that run's drafter 519.50 MiB (519.50 on the device) and 176.00 (176.02 on the
host). The target's depend on graph details and on the build; they carry the largest uncertainty. With flash
attention off (-fa off) the score matrices come on top.

Newer builds sample drafts where the drafter runs (--spec-draft-backend-sampling, on by default; the
published run's b9850 did not), for which its graph holds the logits twice. Qwen3-8B's shapes, 152k tokens, on an
H200 with the pinned build: 610.08 MiB allocated, 602.08 planned. CUDA itself took another 600 MiB there. A reduced
head's logits are held beside the same spread over all tokens, and their place is free when drafts are sampled: 151,936
tokens of which 64k are kept took 425.76 MiB (425.25 planned) and then 595.09 (594.58).

Rules, from the pinned build: the context is padded to 256 cells; with ``-np auto`` four slots share one cache,
with an explicit ``-np N`` each slot has its own share; a window cache holds window x slots (x 1 for own
shares) plus one micro-batch, padded to 256; the drafter's context is the target's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dflash_convert.container.types import BLOCK, TensorType
from dflash_convert.errors import UsageError
from dflash_convert.notes import Note
from dflash_convert.text import MIB

CELL_PAD = 256
AUTO_SLOTS = 4
MAX_SLOTS = 256  # LLAMA_MAX_SEQ
MAX_CONTEXT = (1 << 31) - 1
CACHE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Elements of keys and values that one cell of one layer holds, and whether the layer is windowed."""

    k: int
    v: int
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """One side of the pair: cached layers, window, widths (elements), ``weights`` in bytes or None if unknown.

    ``embeddings`` are those of the weights' bytes that stay in the host's memory; ``reduced`` rows of a head over fewer
    tokens than the vocabulary has, 0 without one.
    """

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
    embeddings: int = 0
    reduced: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
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
    """Bytes one model needs; ``weights`` None when they cannot be told from what was given. ``embeddings`` is their
    part that llama.cpp leaves in the host's memory on any device."""

    weights: int | None
    kv: int
    window_kv: int
    compute: int
    compute_host: int
    taps_host: int = 0
    sampling: int = 0
    embeddings: int = 0

    @property
    def total(self) -> int:
        buffers = self.compute + self.sampling + self.compute_host + self.taps_host
        return (self.weights or 0) + self.kv + self.window_kv + buffers

    def json(self) -> dict[str, float | None]:
        return {
            "weights_mib": None if self.weights is None else mib(self.weights),
            "embeddings_host_mib": mib(self.embeddings),
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


def plan_memory(drafter: Model, target: Model | None, request: Serving) -> MemoryPlan:
    """UsageError when the request cannot be carried out; what is merely unwise becomes a note."""
    request, notes = _resolve(drafter, target, request)
    for model in (drafter, target):
        notes += model.notes if model else ()
    notes.append(Note("info", "compute buffers are estimates (flash attention on); weights and caches are exact"))
    unified = request.parallel is None
    draft_part = _part(drafter, request, (request.draft_cache_k, request.draft_cache_v), request.micro_batch)
    if not drafter.own_selector:
        again = (request.micro_batch + 1) * drafter.vocab * 4
        free = request.micro_batch * drafter.reduced * 4  # a reduced head's own logits, once they are spread
        draft_part = replace(draft_part, sampling=max(again - free, 0))
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


def _resolve(drafter: Model, target: Model | None, request: Serving) -> tuple[Serving, list[Note]]:
    """The request with its context and types filled in."""
    notes: list[Note] = []
    if not 0 <= request.ctx_size <= MAX_CONTEXT:
        raise UsageError(f"a context of {request.ctx_size} tokens is impossible", tip=f"give 0 to {MAX_CONTEXT}")
    if not 1 <= request.slots <= MAX_SLOTS:
        raise UsageError(f"{request.slots} parallel slots are impossible", tip=f"give 1 to {MAX_SLOTS}, or auto")
    if request.n_max < 1 or request.micro_batch < 1 or request.batch < 1:
        raise UsageError("n-max, batch and micro-batch sizes must be at least 1")
    trained = (target or drafter).context_length
    size = asked = request.ctx_size or trained
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
    if not request.ctx_size:
        notes.append(Note("derived", f"context {asked}: as the model was trained"))
    if size != asked:
        notes.append(Note("derived", f"context {size}: padded as llama.cpp pads it"))
    draft_types = _cache_type(request.draft_cache_k), _cache_type(request.draft_cache_v)
    if draft_types != ("F16", "F16"):
        notes.append(Note("warning", "a quantized drafter cache has been seen to cost nearly all acceptance: keep f16"))
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


def window_cells(request: Serving, window: int) -> int:
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


def _part(model: Model, request: Serving, types: tuple[str, str], outputs: int) -> Part:
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
    logits = outputs * (model.vocab + model.reduced) * 4  # of a reduced head, and the same spread over all tokens
    compute = max(logits + activations, n * 2 * model.feed_forward * 4 + 2 * activations)
    share = full if request.parallel is None else full // request.slots
    masks = 2 * n * (share + (windowed // (1 if request.parallel is None else request.slots)))
    return Part(model.weights, kv, window_kv, compute, masks + activations, embeddings=model.embeddings)

"""Mistakes that conversions and pairings make: the text stays right, the drafts become useless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from verify_files import Keys, Tensors

from dflash_convert.container.types import TensorType, array, f32, u32
from dflash_convert.container.types import ValueType as V

Change = Callable[[Keys, Tensors], None]
HEAD = 64  # head_dim of the trained drafter


@dataclass(frozen=True)
class Mutation:
    """Who catches it, beside verify, which catches all.

    ``check``: the name of its finding, ``foreign``: the same for a file without this tool's provenance.
    ``validate``: whether acceptance falls below the sound file's by more than the default tolerance, or the
    engine refuses the file.
    """

    change: Change
    check: str | None
    foreign: str | None
    validate: bool


def taps(shift: int) -> Change:
    def change(keys: Keys, tensors: Tensors) -> None:
        moved = [tap + shift for tap in keys["dflash.target_layers"].value]
        keys["dflash.target_layers"] = array("dflash.target_layers", V.INT32, moved)

    return change


def rope_base(keys: Keys, tensors: Tensors) -> None:
    keys["dflash.rope.freq_base"] = f32("dflash.rope.freq_base", keys["dflash.rope.freq_base"].value * 10)


def mask_id(keys: Keys, tensors: Tensors) -> None:
    keys["tokenizer.ggml.mask_token_id"] = u32("tokenizer.ggml.mask_token_id", 300)


def permuted(keys: Keys, tensors: Tensors) -> None:
    """Rope layouts confused: even rows of each head first, as if the checkpoint were interleaved."""
    for name, (shape, kind, data) in tensors.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            rows = np.frombuffer(data, np.float32).reshape(-1, HEAD // 2, 2, shape[-1])
            tensors[name] = (shape, kind, rows.swapaxes(1, 2).tobytes())


def norms_dropped(keys: Keys, tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight"))]:
        tensors.pop(name)


def norms_of_one(keys: Keys, tensors: Tensors) -> None:
    """Norms present but never trained: what a converter writes that fills holes with ones."""
    for name, (shape, kind, data) in tensors.items():
        if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight")):
            tensors[name] = (shape, kind, np.ones(len(data) // 4, np.float32).tobytes())


def scale(keys: Keys, tensors: Tensors) -> None:
    keys["dflash.embedding_scale"] = f32("dflash.embedding_scale", 128**0.5)


def head(keys: Keys, tensors: Tensors) -> None:
    """A head of the right shape that belongs to another model."""
    rows = np.random.default_rng(0).standard_normal((512, 128), np.float32)
    tensors["output.weight"] = ((512, 128), TensorType.F32, rows.tobytes())


def embeddings(keys: Keys, tensors: Tensors) -> None:
    """Embeddings that were never trained: an exporter's leftover."""
    rows = np.random.default_rng(0).standard_normal((512, 128), np.float32) * np.float32(0.02)
    tensors["token_embd.weight"] = ((512, 128), TensorType.F32, rows.tobytes())


def without_provenance(keys: Keys, tensors: Tensors) -> None:
    """As another converter would have left it."""
    for name in [name for name in keys if name.startswith("dflash_convert.")]:
        del keys[name]


# On this small pair two mistakes cost no acceptance at all: only verify (and provenance) can tell.
MUTATIONS = {
    "taps + 1": Mutation(taps(1), "last-layer-tap", "last-layer-tap", True),
    "taps - 1": Mutation(taps(-1), "taps-shift", None, False),
    "rope base x 10": Mutation(rope_base, "rope-base", "rope-base", True),
    "wrong mask id": Mutation(mask_id, "mask-token-ordinary", "mask-token-ordinary", True),
    "permuted q/k": Mutation(permuted, None, None, True),
    "norms dropped": Mutation(norms_dropped, "missing-tensors", "missing-tensors", True),
    "norms of one": Mutation(norms_of_one, None, None, False),
    "wrong embedding scale": Mutation(scale, "embedding-scale", "embedding-scale", True),
    "embeddings untrained": Mutation(embeddings, "own-embeddings", "own-embeddings", True),
    "head swapped": Mutation(head, "own-head", "own-head", True),
}

"""Write a synthetic DFlash drafter of a real one's size, for benchmarks and memory tests.

    python benchmarks/make_checkpoint.py OUT [--layers 5] [--vocab-size 262144]

The default has the shapes of a Gemma-4-12B drafter: 727 M parameters, 1.45 GB in bf16.  Weights are normal
noise with a standard deviation of 0.02, one 64 MB tile of it repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Sizes(NamedTuple):
    """Of a drafter and the depth of its target."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: tuple[int, ...]
    target_layers: int
    mask: int


GEMMA = Sizes(3840, 7680, 32, 8, 128, (2, 10, 19, 28, 37, 45), 48, 4)
Fill = Callable[[str, tuple[int, ...]], "memoryview | None"]


def shapes(layers: int, sizes: Sizes = GEMMA) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of the drafter."""
    hidden, ffn, head_dim = sizes.hidden, sizes.ffn, sizes.head_dim
    q, kv = sizes.heads * head_dim, sizes.kv_heads * head_dim
    result: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, len(sizes.taps) * hidden)}
    for i in range(layers):
        p = f"layers.{i}."
        result |= {
            p + "input_layernorm.weight": (hidden,),
            p + "mlp.down_proj.weight": (hidden, ffn),
            p + "mlp.gate_proj.weight": (ffn, hidden),
            p + "mlp.up_proj.weight": (ffn, hidden),
            p + "post_attention_layernorm.weight": (hidden,),
            p + "self_attn.k_norm.weight": (head_dim,),
            p + "self_attn.k_proj.weight": (kv, hidden),
            p + "self_attn.o_proj.weight": (hidden, q),
            p + "self_attn.q_norm.weight": (head_dim,),
            p + "self_attn.q_proj.weight": (q, hidden),
            p + "self_attn.v_proj.weight": (kv, hidden),
        }
    return result | {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}


def config(layers: int, vocab_size: int, sizes: Sizes = GEMMA) -> dict[str, object]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "dflash_config": {"mask_token_id": sizes.mask, "target_layer_ids": list(sizes.taps)},
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.ffn,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "num_hidden_layers": layers,
        "num_target_layers": sizes.target_layers,
        "max_position_embeddings": 262144,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "vocab_size": vocab_size,
        "dtype": "bfloat16",
    }


def write(
    directory: Path,
    layers: int = 5,
    vocab_size: int = 262144,
    sizes: Sizes = GEMMA,
    fill: Fill = lambda name, shape: None,
) -> int:
    """Write config.json and model.safetensors; returns the number of parameters.

    ``fill`` may give a tensor's bytes, a repeated piece of them; None is noise.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(layers, vocab_size, sizes), indent=1), encoding="utf-8")
    noise = np.random.default_rng(1).standard_normal(1 << 25, dtype=np.float32) * np.float32(0.02)
    tile = memoryview((noise.view(np.uint32) >> 16).astype("<u2").tobytes())
    header: dict[str, object] = {}
    at = 0
    tensors = shapes(layers, sizes)
    for name, shape in tensors.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, shape in tensors.items():
            piece, left = fill(name, shape) or tile, 2 * int(np.prod(shape))
            while left:
                left -= file.write(piece[: min(left, len(piece))])
    return at // 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=262144)
    given = parser.parse_args()
    print(f"{write(given.out, given.layers, given.vocab_size) / 1e6:.0f} M parameters")  # noqa: T201

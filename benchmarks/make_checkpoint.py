"""Write a synthetic DFlash drafter of a real one's size, for benchmarks and memory tests.

    python benchmarks/make_checkpoint.py OUT [--layers 5] [--vocab-size 262144]

The default has the shapes of a Gemma-4-12B drafter: 727 M parameters, 1.45 GB in bf16.  Weights are normal
noise with a standard deviation of 0.02, one 64 MB tile of it repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, TAPS = 3840, 7680, 32, 8, 128, (2, 10, 19, 28, 37, 45)


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of the drafter."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    result: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, len(TAPS) * HIDDEN)}
    for i in range(layers):
        p = f"layers.{i}."
        result |= {
            p + "input_layernorm.weight": (HIDDEN,),
            p + "mlp.down_proj.weight": (HIDDEN, FFN),
            p + "mlp.gate_proj.weight": (FFN, HIDDEN),
            p + "mlp.up_proj.weight": (FFN, HIDDEN),
            p + "post_attention_layernorm.weight": (HIDDEN,),
            p + "self_attn.k_norm.weight": (HEAD_DIM,),
            p + "self_attn.k_proj.weight": (kv, HIDDEN),
            p + "self_attn.o_proj.weight": (HIDDEN, q),
            p + "self_attn.q_norm.weight": (HEAD_DIM,),
            p + "self_attn.q_proj.weight": (q, HIDDEN),
            p + "self_attn.v_proj.weight": (kv, HIDDEN),
        }
    return result | {"hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,)}


def config(layers: int, vocab_size: int) -> dict[str, object]:
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 16,
        "dflash_config": {"mask_token_id": 4, "target_layer_ids": list(TAPS)},
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": layers,
        "num_target_layers": 48,
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


def write(directory: Path, layers: int = 5, vocab_size: int = 262144) -> int:
    """Write config.json and model.safetensors; returns the number of parameters."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(layers, vocab_size), indent=1), encoding="utf-8")
    noise = np.random.default_rng(1).standard_normal(1 << 25, dtype=np.float32) * np.float32(0.02)
    tile = memoryview((noise.view(np.uint32) >> 16).astype("<u2").tobytes())
    header: dict[str, object] = {}
    at = 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        left = at
        while left:
            left -= file.write(tile[: min(left, len(tile))])
    return at // 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=262144)
    given = parser.parse_args()
    print(f"{write(given.out, given.layers, given.vocab_size) / 1e6:.0f} M parameters")  # noqa: T201

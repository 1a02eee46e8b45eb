"""Write a pair in which every draft is right: the most that drafting can gain on a machine.

    python benchmarks/make_pair.py OUT TOKENIZER [--small]
    dflash-convert validate OUT/dflash-pair-Q4_0.gguf OUT/target.gguf --set code --n-predict 256 --n-max 15,7,3 \
        --no-sampled --thinking off --long-context 0

TOKENIZER is a directory with Qwen3's tokenizer files. The models have the shapes of Qwen3-8B and its DFlash drafter
(--small: tiny ones), and all their layers are computed, but what the layers add is zero: the embedding alone
reaches the head, and head and embeddings are such that one token follows every token.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import make_checkpoint
import numpy as np

import quant
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import KV, TensorType, f32, string, tensor_nbytes, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.target import Target

VOCAB, TOKEN, LAYERS = 151936, 279, 36
QWEN3_8B = make_checkpoint.Sizes(4096, 12288, 32, 8, 128, (1, 9, 17, 25, 33), LAYERS, 151669)
SMALL = make_checkpoint.Sizes(256, 512, 4, 2, 64, (1, 2), 4, 151669)
PIECE = 1 << 20  # Q8_0 blocks written at a time


def drafter(directory: Path, sizes: make_checkpoint.Sizes) -> None:
    ones = memoryview(np.full(1 << 20, 0x3F80, "<u2").tobytes())

    def fill(name: str, shape: tuple[int, ...]) -> memoryview | None:
        if len(shape) == 1:
            return ones
        return memoryview(bytes(1 << 20)) if "o_proj" in name or "down_proj" in name else None

    make_checkpoint.write(directory, vocab_size=VOCAB, sizes=sizes, fill=fill)


def target_config(sizes: make_checkpoint.Sizes) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.ffn,
        "num_hidden_layers": sizes.target_layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": VOCAB,
        "max_position_embeddings": 40960,
    }


def target(path: Path, sizes: make_checkpoint.Sizes, tokenizer: list[KV]) -> None:
    """A qwen3 GGUF in Q8_0."""
    hidden, q, kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    keys = [string("general.architecture", "qwen3"), string("general.name", "pair"), u32("general.file_type", 7)]
    numbers = {"block_count": sizes.target_layers, "context_length": 40960, "embedding_length": hidden}
    numbers |= {"feed_forward_length": sizes.ffn, "attention.head_count": sizes.heads}
    numbers |= {"attention.head_count_kv": sizes.kv_heads}
    numbers |= {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.head_dim}
    keys += [u32(f"qwen3.{name}", value) for name, value in numbers.items()]
    keys += [f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6), f32("qwen3.rope.freq_base", 1e6), *tokenizer]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, hidden), "output.weight": (VOCAB, hidden)}
    shapes["output_norm.weight"] = (hidden,)
    for i in range(sizes.target_layers):
        layer = {"attn_norm": (hidden,), "ffn_norm": (hidden,)}
        layer |= {"attn_q_norm": (sizes.head_dim,), "attn_k_norm": (sizes.head_dim,)}
        layer |= {"attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q)}
        layer |= {"ffn_gate": (sizes.ffn, hidden), "ffn_up": (sizes.ffn, hidden), "ffn_down": (hidden, sizes.ffn)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    entries = [Entry(n, s, TensorType.F32 if len(s) == 1 else TensorType.Q8_0) for n, s in shapes.items()]
    noise = np.random.default_rng(2).standard_normal((PIECE // 64, 64 * 32), dtype=np.float32) * np.float32(0.02)
    tile = quant.quantize(noise, "Q8_0").tobytes()
    with GgufOutput(path, entries, layout(keys, entries), force=True) as out:
        for entry in entries:
            at = out.offset(entry.name)
            if len(entry.shape) == 1:
                out.write_at(at, np.ones(entry.shape, np.float32).tobytes())
            elif not entry.name.endswith(("attn_output.weight", "ffn_down.weight")):  # these stay zero
                size = tensor_nbytes(entry.type, entry.shape)
                for start in range(0, size, len(tile)):
                    out.write_at(at + start, tile[: min(len(tile), size - start)])
        # all embeddings point one way, and the head of one token alone looks there
        row = hidden // 32 * 34
        one, two = (quant.quantize(np.full((1, 32), value, np.float32), "Q8_0").tobytes() for value in (1, 2))
        for token in range(VOCAB):
            out.write_at(out.offset("token_embd.weight") + token * row, two if token == TOKEN else one)
        out.write_at(out.offset("output.weight") + TOKEN * row, one)
        out.commit()


def make(out: Path, tokenizer: Path, sizes: make_checkpoint.Sizes, types: tuple[str, ...] = ("Q8_0", "Q4_0")) -> None:
    """target.gguf, dflash-pair-TYPE.gguf and what they are made of, in ``out``."""
    drafter(out / "drafter", sizes)
    (out / "target").mkdir(exist_ok=True)
    for file in tokenizer.iterdir():
        shutil.copyfile(file, out / "target" / file.name)
    (out / "target" / "config.json").write_text(json.dumps(target_config(sizes)), encoding="utf-8")
    sources = Source(out / "drafter"), Target.read(out / "target")
    conversion = prepare(*sources, Options(outtypes=types, target_name="pair"))
    paths = conversion.default_paths(out)
    write(conversion, paths, force=True)
    keys = [kv for name, kv in open_gguf(paths[0]).keys.items() if name.startswith("tokenizer.")]
    target(out / "target.gguf", sizes, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    make(given.out, given.tokenizer, SMALL if given.small else QWEN3_8B)


if __name__ == "__main__":
    main()

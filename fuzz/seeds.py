"""Write the seeds of every harness from the fixtures: ``PYTHONPATH=fixtures python fuzz/seeds.py OUT``."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import make_checkpoints
import malformed_gguf
import malformed_safetensors
from fuzz_tokenizer import NAMES
from harness import FIXTURES, ROOT

LARGEST = 20_000  # bytes; longer seeds only slow the fuzzer down


def gguf() -> dict[str, bytes]:
    seeds = {name: data for name, (data, _) in malformed_gguf.MALFORMED.items()}
    return seeds | {"target": (FIXTURES / "target-bf16.gguf").read_bytes()[:LARGEST]}


def safetensors() -> dict[str, bytes]:
    return {name: data for name, (data, _) in malformed_safetensors.MALFORMED.items() if len(data) < LARGEST}


def config() -> dict[str, bytes]:
    seeds = {f"changes {n}": bytes([1 + n % 3, n, n, n * 7 % 256, 3, n, n * 5 % 256, 2]) for n in range(60)}
    for n, make in enumerate(make_checkpoints.CASES.values()):
        seeds[f"raw {n}"] = bytes([0, n]) + json.dumps(make().config).encode()
    return seeds


def tokenizer() -> dict[str, bytes]:
    seeds = {}
    for number, names in enumerate(NAMES):
        for path in (ROOT / "fixtures").rglob(names[0].replace("qwen", "*")):
            data = path.read_bytes()
            if len(data) < LARGEST:
                seeds[f"{number} {path.parent.name}"] = bytes([number]) + data
        seeds[f"{number} empty"] = bytes([number]) + b"{}"
    return seeds


def torchfile() -> dict[str, bytes]:
    """The pickle of torch.save({'mask_token_id': 7, 'embedding': a float32 tensor of 2})."""
    program = b"\x80\x02}q\x00(X\x0d\x00\x00\x00mask_token_idq\x01K\x07X\x09\x00\x00\x00embeddingq\x02"
    program += b"ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\x07\x00\x00\x00storageq\x04ctorch\nFloatStorage\nq\x05"
    program += b"X\x01\x00\x00\x000q\x06X\x03\x00\x00\x00cpuq\x07K\x02tq\x08QK\x00K\x02\x85q\tK\x01\x85q\n\x89"
    program += b"ccollections\nOrderedDict\nq\x0b)Rq\x0ctq\rRq\x0eu."
    return {"whole": b"\1" + program, "frame": b"\1\x80\x04\x95" + struct.pack("<Q", 5) + b"}\x94.", "zip": b"\0PK"}


def main(out: Path) -> None:
    for make in (gguf, safetensors, config, tokenizer, torchfile):
        where = out / make.__name__
        where.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(make().values()):
            (where / f"seed-{number:03}").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

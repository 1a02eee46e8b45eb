"""Memory stays flat: a head's rows are streamed, however many there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROWS, WIDTH = 60_000, 1024  # 123 MB in bf16
SCRIPT = """
import resource
import sys
from pathlib import Path

import numpy as np

from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import TensorType, ValueType, array, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.head.base import Base
from dflash_convert.head.build import Head, plan_head
from dflash_convert.head.matrix import target_matrices
from dflash_convert.quantization import write_file

out, rows, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tokens = array("tokenizer.ggml.tokens", ValueType.STRING, [f"t{i}" for i in range(rows)])
for name, arch, tensors in (
    ("dflash-x", "dflash", {"output_norm.weight": (width,)}),
    ("target", "qwen3", {"token_embd.weight": (rows, width), "output.weight": (rows, width)}),
):
    keys = [string("general.architecture", arch), u32(f"{arch}.embedding_length", width), tokens]
    entries = [Entry(n, s, TensorType.BF16 if len(s) > 1 else TensorType.F32) for n, s in tensors.items()]
    with GgufOutput(out / f"{name}.gguf", entries, layout(keys, entries)) as output:
        output.commit()  # a hole of the right size
drafter, target = Base.of(open_gguf(out / "dflash-x.gguf")), target_matrices(out / "target.gguf")


def made(keep):
    plan = plan_head(drafter, target, Head(np.arange(0, 2 * keep, 2), sys.argv[4] or None, own_table=True))
    write_file(plan, out / "made.gguf", force=True, threads=1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


print(made(500), made(rows // 2))
"""


def test_a_hundred_times_the_rows_take_no_more_memory(tmp_path: Path) -> None:
    for kind in ("", "Q4_0"):
        call = [sys.executable, "-c", SCRIPT, tmp_path, str(ROWS), str(WIDTH), kind]
        done = subprocess.run(list(map(str, call)), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        few, many = map(int, done.stdout.split())  # KiB; the half head alone is 61 MB, both tables are 245
        assert many - few < 16_000, (kind, few, many)
        assert (tmp_path / "made.gguf").stat().st_size > 120_000_000
        (tmp_path / "made.gguf").unlink()
        for name in ("dflash-x.gguf", "target.gguf"):
            (tmp_path / name).unlink()

"""What a reduced head saves: time of a draft with the target's head, and with fewer rows of it, in one run.

    python benchmarks/head.py [--hidden 2048] [--runs 20] [--tokens 48] [--threads N] [--tokenizer DIR] [--work DIR]

A synthetic pair in which every draft is right (make_pair.py), with Qwen3's 151,936 tokens and 4 layers each, is made
in --work (a temporary directory; some 1.5 GB at 2048), and the drafter with heads of 64k copied rows and of 32k rows in
Q4_0. All three are loaded in embedded llama.cpps of their own and answer in turn; figures are medians of the runs with
their smallest and largest, ratios those of one turn. A step is one draft of n-max 7 tokens and its verification.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import make_checkpoint
import make_pair
import numpy as np
from speed import TOKENIZERS, say, shown

from dflash_convert.container.reader import open_gguf
from dflash_convert.engine import find, session
from dflash_convert.engine.trace import Launch, Request
from dflash_convert.head.base import Base
from dflash_convert.head.build import Head, plan_head
from dflash_convert.head.matrix import target_matrices
from dflash_convert.quantization import write_file

N_MAX, LAYERS = 7, 4
HEADS = {"64k rows, copied": (64 << 10, None), "32k rows, q4_0": (32 << 10, "Q4_0")}


def contenders(work: Path, sizes: make_checkpoint.Sizes, tokenizer: Path) -> dict[str, Path]:
    make_pair.make(work, tokenizer, sizes, ("Q8_0",))
    borrowed = work / "dflash-pair-Q8_0.gguf"
    matrices, found = target_matrices(work / "target.gguf"), {"borrowed, 151,936 rows": borrowed}
    for name, (rows, kind) in HEADS.items():
        ids = np.linspace(0, make_pair.VOCAB - 1, rows).astype(np.int64)
        ids[np.searchsorted(ids, make_pair.TOKEN)] = make_pair.TOKEN  # the one that the pair speaks
        found[name] = work / f"dflash-pair-Q8_0-V{rows >> 10}k.gguf"
        write_file(plan_head(Base.of(open_gguf(borrowed)), matrices, Head(ids, kind)), found[name])
    return found


def step(engine: session.Session, request: Request) -> tuple[float, float]:
    """Milliseconds of a draft and of a whole step."""
    trace = engine.complete(request)
    if trace.draft_ms is None or trace.accepted < request.n_predict - 1 - trace.known_steps:
        raise SystemExit(f"{trace.accepted} of {trace.drafted} drafts accepted, all should be")
    return trace.draft_ms / trace.known_steps, trace.generation_ms / trace.known_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZERS / "qwen3")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    heads = given.hidden // 128
    sizes = make_checkpoint.Sizes(given.hidden, 3 * given.hidden, heads, heads // 4, 128, (0, 1, 2), LAYERS, 151669)
    with tempfile.TemporaryDirectory(dir=given.work) as place:
        files = contenders(Path(place), sizes, given.tokenizer)
        request = Request(tuple(range(1000, 1016)), given.tokens, ignore_eos=True)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in files}
        with ExitStack() as stack:
            engines = {}
            for name, path in files.items():
                launch = Launch(Path(place) / "target.gguf", path, "draft-dflash", N_MAX, 512, given.threads)
                engines[name] = stack.enter_context(session.start(find.choose(None, launch), launch))
                step(engines[name], request)  # not counted
            before = os.getloadavg()[0]
            for _ in range(given.runs):
                for name, engine in engines.items():
                    times[name].append(step(engine, request))
        sizes_mb = {name: path.stat().st_size / 1e6 for name, path in files.items()}
    say("| head | file | draft, ms | against the borrowed one | step, ms |\n|---|---|---|---|---|")
    base = next(iter(times.values()))
    for name, values in times.items():
        drafts, steps = zip(*values, strict=True)
        ratio = shown([a / b for a, (b, _) in zip(drafts, base, strict=True)])
        say(f"| {name} | {sizes_mb[name]:,.0f} MB | {shown(drafts, '.0f')} | {ratio} | {shown(steps, '.0f')} |")
    say(f"\nHidden size {given.hidden}, {given.runs} runs; load (1 minute) before: {before:.1f}.")


if __name__ == "__main__":
    main()

"""Time and memory of whole conversions, ours and llama.cpp's side by side in one run.

    python benchmarks/conversion.py DRAFTER TARGET [--llama-cpp TREE] [--python PYTHON] [--runs 3]

DRAFTER and TARGET are directories (benchmarks/make_checkpoint.py writes a drafter).  With --llama-cpp, a
source tree with a built llama-quantize in build/bin, its converter runs under --python (torch and
transformers needed) in turn with ours.  Printed: medians of wall time, the largest resident total of the
process tree (sampled), and the ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TYPES = ("bf16", "q8_0", "q4_0", "q4_k_m")


def tree_rss(root: int) -> int:
    """Resident bytes of a process and its descendants."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        parents[int(entry.name)] = int(fields["PPid"])
        resident[int(entry.name)] = int(fields.get("VmRSS", "0").split()[0]) * 1024
    total, wanted = 0, {root}
    for _ in range(8):
        wanted |= {pid for pid, parent in parents.items() if parent in wanted}
    for pid in wanted:
        total += resident.get(pid, 0)
    return total


def measure(command: list[str], env: dict[str, str] | None = None) -> tuple[float, int]:
    """(seconds, peak resident bytes of the tree)."""
    begin = time.monotonic()
    env = {**os.environ, **(env or {})}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_rss(process.pid))
        time.sleep(0.02)
    seconds = time.monotonic() - begin
    if process.returncode:
        text = process.stderr.read().decode() if process.stderr else ""
        raise SystemExit(f"{command[0]} failed:\n{text[-2000:]}")
    return seconds, peak


def ours(args: argparse.Namespace, kind: str, out: Path) -> list[list[str]]:
    call = [sys.executable, "-m", "dflash_convert", str(args.drafter), "--target-model-dir", str(args.target)]
    return [[*call, "-t", kind, "-o", str(out / f"ours-{kind}.gguf"), "--force", "-q"]]


def theirs(args: argparse.Namespace, kind: str, out: Path) -> list[list[str]]:
    direct = kind in ("bf16", "q8_0")
    first = out / f"theirs-{kind if direct else 'bf16-for-quantize'}.gguf"
    convert = [args.python, str(args.llama_cpp / "convert_hf_to_gguf.py"), str(args.drafter)]
    steps = [[*convert, "--target-model-dir", str(args.target), "--outtype", kind if direct else "bf16"]]
    steps[0] += ["--outfile", str(first)]
    if not direct:
        binary = args.llama_cpp / "build" / "bin" / "llama-quantize"
        steps.append([str(binary), str(first), str(out / f"theirs-{kind}.gguf"), kind.upper()])
    return steps


def run(steps: list[list[str]]) -> tuple[float, int]:
    results = [measure(step) for step in steps]
    return sum(seconds for seconds, _ in results), max(peak for _, peak in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--types", default=",".join(TYPES))
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, medians of {args.runs} interleaved runs")  # noqa: T201
    print("| type | ours s | ours MB | llama.cpp s | llama.cpp MB | time ratio |\n|---|---|---|---|---|---|")  # noqa: T201
    with tempfile.TemporaryDirectory(dir=".") as name:
        for kind in args.types.split(","):
            sides = [ours(args, kind, Path(name))] + ([theirs(args, kind, Path(name))] if args.llama_cpp else [])
            results: list[list[tuple[float, int]]] = [[] for _ in sides]
            for _ in range(args.runs):
                for side, steps in enumerate(sides):
                    results[side].append(run(steps))
            row = [(statistics.median(s for s, _ in r), max(p for _, p in r)) for r in results]
            cells = [f"{s:.1f} | {p / 1e6:.0f}" for s, p in row] + ["- | -"] * (2 - len(row))
            ratio = f"{row[0][0] / row[1][0]:.2f}" if len(row) > 1 else "-"
            print(f"| {kind} | {' | '.join(cells)} | {ratio} |", flush=True)  # noqa: T201
            for file in Path(name).iterdir():
                file.unlink()


if __name__ == "__main__":
    main()

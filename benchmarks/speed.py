"""Everything that docs/performance.md promises, measured in one run: ratios with their spread, and the load.

    python benchmarks/speed.py [--runs 5] [--types bf16,q8_0] [--only start,kernels] [--large DIR] [--small DIR]
        [--work DIR] [--layers 27] [--llama-cpp TREE --python PYTHON]

--large and --small are directories with tokenizer files, of Gemma 4 (262k tokens) and Qwen3 (152k) if not given:
beside this checkout as the tests want them. Synthetic drafters are made in --work (a temporary directory there;
16 GB, or 8 with --layers 0, which leaves out the drafter that shows two processes at longer work). Contenders take
turns within a run and every output is deleted before the next one; a figure is the median of the runs with their
smallest and largest, and a ratio is that of the two figures of the same run. Caches of the system are warm.
--llama-cpp is a source tree with a built llama-quantize (see conversion.py). `verify` tries vocabularies in llama.cpp
only where the embedded engine is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import conversion
import make_checkpoint
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOKENIZERS = ROOT.parent / "shared" / "tokenizers"
TYPES = ("bf16", "q8_0", "q4_0", "q4_k_m")
CACHE = "DFLASH_TOKENIZER_CACHE"
SMALL = make_checkpoint.Sizes(256, 512, 4, 2, 64, (1, 2), 4, 151669)
CLI = [sys.executable, "-m", "dflash_convert"]
# what each figure should come to, or what it cannot pass
AIMS = {
    "bf16": "1.5 x the copy",
    "q8_0": "0.2 x llama.cpp",
    "q4_0": "0.2 x llama.cpp",
    "q4_k_m": "0.45 x llama.cpp",
    "import dflash_convert": "100",
    "`--help`": "100",
    "small drafter, 152k tokens: read anew": "600",
    "\u2026 its tokenizer alone": "300",
    **{f"decode {kind}": "0.5" for kind in ("Q8_0", "Q4_0", "Q4_K", "Q6_K")},
    "encode Q4_1": "0.7",
    "encode Q3_K": "0.9",
}
# one of several processes that do the same at once: makes its data, says so, works when it is told, says how long
WORKER = """
import os, sys, time
import numpy as np
import quant
kind, source, rounds = sys.argv[1], sys.argv[2], 24
rows = (np.random.default_rng(0).standard_normal((256, 8192), np.float32) * 0.02).view(np.uint32)
rows = (rows >> 16).astype(np.uint16)
fd = os.open(source, os.O_RDONLY)
if kind == "encode":
    encoder = quant.Encoder("Q8_0", 8192)
    out = np.empty((256, encoder.row_nbytes), np.uint8)
    step = encoder.rows_per_call
    def work(i):
        for at in range(0, 256, step):
            encoder.encode(rows[at : at + step], out[at : at + step])
else:
    other = np.empty_like(rows)
    def work(i):
        os.preadv(fd, [rows], 4096 + i * rows.nbytes)
        if kind == "copy":
            np.copyto(other, rows)
work(0)
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
for i in range(rounds):
    work(i)
print((time.perf_counter() - begin) / rounds, flush=True)
"""
Contender = Callable[[], float]
Times = dict[str, list[float]]


def command(*args: object, env: dict[str, str] | None = None) -> Contender:
    """Seconds of a program from start to end; a failure ends the benchmark."""

    def run() -> float:
        begin = time.perf_counter()
        output_of(args, env or {})
        return time.perf_counter() - begin

    return run


def output_of(args: Sequence[object], env: dict[str, str]) -> bytes:
    line = [str(arg) for arg in args]
    done = subprocess.run(line, env={**os.environ, **env}, capture_output=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} failed:\n{done.stderr.decode()[-2000:]}")
    return done.stdout


def reported(*args: object, env: dict[str, str]) -> Callable[[], tuple[float, float]]:
    """Seconds of a conversion, and those from when its header was ready to when the file had its name (--json)."""

    def run() -> tuple[float, float]:
        begin = time.perf_counter()
        out = output_of([*args, "--json"], env)
        return time.perf_counter() - begin, float(json.loads(out)[0]["seconds"])

    return run


def together(count: int, kind: str, source: Path) -> float:
    """Seconds a round of the slowest of ``count`` processes that do the same at once."""
    line = [sys.executable, "-c", WORKER, kind, str(source)]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    running = [subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True, env=env, cwd=ROOT) for _ in range(count)]
    for process in running:
        process.stdout.readline()  # type: ignore[union-attr]
    for process in running:
        process.stdin.write("\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    return max(float(process.communicate()[0]) for process in running)


def fresh(output: Path, run: Contender) -> Contender:
    """``run`` where ``output`` does not exist and the disk has nothing left to write."""

    def prepared() -> float:
        output.unlink(missing_ok=True)
        os.sync()
        return run()

    return prepared


def take_turns(contenders: dict[str, Contender], runs: int) -> Times:
    """Each contender's seconds, after one round that does not count."""
    times: Times = {name: [] for name in contenders}
    for number in range(runs + 1):
        for name, run in contenders.items():
            seconds = run()
            if number:
                times[name].append(seconds)
    return times


def shown(values: Sequence[float], form: str = ".2f") -> str:
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def ratio(times: Times, name: str, other: str, form: str = ".2f") -> str:
    return shown([a / b for a, b in zip(times[name], times[other], strict=True)], form)


def say(line: str = "") -> None:
    print(line, flush=True)  # noqa: T201


def table(title: str, head: Sequence[str], rows: Iterator[Sequence[str]]) -> None:
    """A Markdown table, its load before and after below it."""
    say(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    before = os.getloadavg()[0]
    for row in rows:
        say(f"| {' | '.join(row)} |")
    say(f"\nLoad (1 minute): {before:.1f} before, {os.getloadavg()[0]:.1f} after.")


class Bench:
    """The inputs, made once."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.runs, self.work, self.types = args.runs, work, args.types.split(",")
        self.llama_cpp, self.python = args.llama_cpp, args.python
        self.big, self.small = work / "big", work / "small"
        self.big_target = self._target("big-target", args.large, "Gemma4ForConditionalGeneration", 262144, 3840, 48)
        self.small_target = self._target("small-target", args.small, "Qwen3ForCausalLM", 151936, 256, 4)
        make_checkpoint.write(self.big)
        make_checkpoint.write(self.small, 1, 151936, SMALL)
        self.layers, self.long = args.layers, work / "long"
        self.cached, self.uncached = {CACHE: str(work / "cache")}, {CACHE: "off"}

    def _target(self, name: str, tokenizer: Path, architecture: str, vocab: int, hidden: int, layers: int) -> Path:
        path = self.work / name
        shutil.copytree(tokenizer, path)
        path.chmod(0o755)
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab}
        config = {"architectures": [architecture], **sizes, "text_config": sizes, "max_position_embeddings": 262144}
        (path / "config.json").write_text(json.dumps(config), "utf-8")
        return path

    def call(self, kind: str, output: Path, drafter: Path | None = None) -> list[str]:
        args = [drafter or self.big, "--target-model-dir", self.big_target, "-t", kind, "-o", output, "-q"]
        return [*CLI, *map(str, args)]

    def convert(self, kind: str, output: Path, env: dict[str, str] | None = None) -> Contender:
        return fresh(output, command(*self.call(kind, output), env=env or self.cached))

    def start(self) -> Iterator[Sequence[str]]:
        small = self.work / "small.gguf"
        call = [*CLI, self.small, "--target-model-dir", self.small_target, "-o", small, "-q"]
        load = (
            "import sys, time\nfrom pathlib import Path\nfrom dflash_convert.vocab import load_vocabulary\n"
            "begin = time.perf_counter()\nload_vocabulary(Path(sys.argv[1]), vocab_size=151936)\n"
            "print(time.perf_counter() - begin)"
        )

        def inside(env: dict[str, str]) -> Contender:
            line = [sys.executable, "-c", load, str(self.small_target)]
            return lambda: float(subprocess.check_output(line, env={**os.environ, **env}, cwd=ROOT))

        contenders = {
            "import dflash_convert": command(sys.executable, "-c", "import dflash_convert"),
            "`--help`": command(*CLI, "--help"),
            "small drafter, 152k tokens: read anew": fresh(small, command(*call, env=self.uncached)),
            "… its tokenizer alone": inside(self.uncached),
            "small drafter, 152k tokens: read before": fresh(small, command(*call, env=self.cached)),
            "… its tokenizer alone, read before": inside(self.cached),
        }
        for name, values in take_turns(contenders, self.runs).items():
            yield name, shown([1000 * value for value in values], ".0f"), AIMS.get(name, "")

    def conversions(self) -> Iterator[Sequence[str]]:
        copy = self.work / "copy.bin"
        script = 'cp "$1" "$2" && sync "$2"'
        limit = fresh(copy, command("sh", "-c", script, "sh", self.big / "model.safetensors", copy))
        for kind in self.types:
            output = self.work / f"big-{kind}.gguf"
            contenders = {"copy": limit, "ours": self.convert(kind, output)}
            if self.llama_cpp:
                contenders["theirs"] = self._theirs(kind)
            times = take_turns(contenders, self.runs)
            against = ratio(times, "ours", "theirs") if self.llama_cpp else "–"
            theirs = shown(times["theirs"], ".1f") if self.llama_cpp else "–"
            yield (
                kind,
                shown(times["ours"]),
                shown(times["copy"]),
                ratio(times, "ours", "copy"),
                theirs,
                against,
                AIMS[kind],
            )
            copy.unlink()

    def _theirs(self, kind: str) -> Contender:
        given = argparse.Namespace(
            python=self.python, llama_cpp=self.llama_cpp, drafter=self.big, target=self.big_target
        )
        steps = [command(*step) for step in conversion.theirs(given, kind, self.work)]

        def run() -> float:
            for path in self.work.glob("theirs-*.gguf"):
                path.unlink()
            os.sync()
            return sum(step() for step in steps)

        return run

    def workers(self) -> Iterator[Sequence[str]]:
        """With what could be reached if all that is shared took its part of the time, and the rest what it takes."""
        for kind in self.types:
            yield from self._workers(kind, kind, self.big)
        if self.layers:
            parameters = make_checkpoint.write(self.long, self.layers)
            yield from self._workers("q8_0", f"q8_0, {parameters / 1e9:.1f} G parameters", self.long)
            shutil.rmtree(self.long)

    def _workers(self, kind: str, name: str, drafter: Path) -> Iterator[Sequence[str]]:
        output, counts = self.work / "workers.gguf", list(dict.fromkeys((1, 2, os.cpu_count() or 1)))
        whole: Times = {str(n): [] for n in counts}
        inside: Times = {str(n): [] for n in counts}
        for number in range(self.runs + 1):
            for n in counts:
                output.unlink(missing_ok=True)
                os.sync()
                seconds, written = reported(*self.call(kind, output, drafter), "--threads", n, env=self.cached)()
                if number:
                    whole[str(n)].append(seconds)
                    inside[str(n)].append(written)
        output.unlink()
        for n in counts:
            pairs = zip(whole["1"], inside["1"], strict=True)
            limit = shown([all_ / (all_ - shared + shared / n) for all_, shared in pairs])
            alone = ratio(inside, "1", str(n))
            yield name, str(n), shown(whole[str(n)]), ratio(whole, "1", str(n)), alone, limit, "1.7" * (n == 2)

    def memory(self) -> Iterator[Sequence[str]]:
        """The largest sum over all processes at one moment, with the tokenizer read anew and read before."""
        output = self.work / "memory.gguf"
        for kind in self.types:
            peaks: list[list[float]] = [[], []]
            for _ in range(self.runs):
                for side, env in zip(peaks, (self.uncached, self.cached), strict=True):
                    output.unlink(missing_ok=True)
                    side.append(conversion.measure(self.call(kind, output), env)[1] / 1e6)
            yield kind, *(shown(side, ".0f") for side in peaks), "335"
        output.unlink()

    def machine(self) -> Iterator[Sequence[str]]:
        """What two processes gain here when nothing is shared but the machine."""
        source = self.big / "model.safetensors"
        for kind, what in (
            ("encode", "encode Q8_0, in memory"),
            ("copy", "copy 4 MB in memory after reading it"),
            ("read", "read 4 MB that the system holds"),
        ):
            one, two = (partial(together, count, kind, source) for count in (1, 2))
            times = take_turns({"one": one, "two": two}, self.runs)
            gains = [2 * a / b for a, b in zip(times["one"], times["two"], strict=True)]
            yield what, *(shown([1000 * value for value in times[n]]) for n in ("one", "two")), shown(gains)

    def verification(self) -> Iterator[Sequence[str]]:
        """Once as usual, once with nothing remembered: the tokenizer read, the vocabulary tried in llama.cpp."""
        anew = {CACHE: "off"}
        for kind in self.types:
            output = self.work / f"big-{kind}.gguf"
            call = [*CLI, "verify", output, self.big, "--target-model-dir", self.big_target, "-q"]
            contenders = {
                "convert": self.convert(kind, output),
                "verify": command(*call, env=self.cached),
                "convert anew": self.convert(kind, output, env=anew),
                "verify anew": command(*call, env=anew),
            }
            times = take_turns(contenders, self.runs)
            sides = [(*map(shown, (times[f"convert{how}"], times[f"verify{how}"])), how) for how in ("", " anew")]
            cells = [(*pair, ratio(times, f"verify{how}", f"convert{how}")) for *pair, how in sides]
            yield kind, *cells[0], *cells[1], "2"

    def kernels(self) -> Iterator[Sequence[str]]:
        import kernels

        lib, rng = kernels.load_c(), np.random.default_rng(0)
        rows = (rng.standard_normal((512, kernels.COLUMNS)) * 0.02).astype(np.float32)
        with ThreadPoolExecutor(1) as pool:
            for way, make, names in (
                ("decode", kernels.decode_contenders, ("Q8_0", "Q4_0", "Q4_K", "Q6_K")),
                ("encode", kernels.encode_contenders, ("Q8_0", "Q4_0", "Q4_1", "Q3_K", "Q4_K", "Q6_K")),
            ):
                for name in names:
                    x = rows if name.endswith("K") else rows[:256]
                    ours, _, _, c, _ = make(lib, pool, x, name, 1)
                    times = take_turns({"ours": timed(ours), "c": timed(c)}, 4 * self.runs)
                    speeds = [shown([x.size / value / 1e6 for value in times[side]], ".0f") for side in ("ours", "c")]
                    yield way, name, *speeds, ratio(times, "c", "ours"), AIMS.get(f"{way} {name}", "")


def timed(call: Callable[[], Any]) -> Contender:
    def run() -> float:
        call()  # the other contender left its own data in the processor's cache
        begin = time.thread_time()
        call()
        return time.thread_time() - begin

    return run


def refuse(parser: argparse.ArgumentParser, args: argparse.Namespace, wanted: list[str], parts: list[str]) -> None:
    """End with one sentence for what cannot be measured, before gigabytes are made for it."""
    for name in wanted:
        if name not in parts:
            parser.error(f"--only {name}: the parts are {', '.join(parts)}")
    if args.runs < 1 or args.layers < 0:
        parser.error("--runs is at least 1, --layers at least 0")
    for option, place in (
        ("large", args.large),
        ("small", args.small),
        ("work", args.work),
        ("llama-cpp", args.llama_cpp),
    ):
        if place is not None and not place.is_dir():
            parser.error(f"--{option} {place}: no such directory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--large", type=Path, default=TOKENIZERS / "gemma4")
    parser.add_argument("--small", type=Path, default=TOKENIZERS / "qwen3")
    parser.add_argument("--work", type=Path, default=Path())
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--layers", type=int, default=27, help="of the drafter for longer work; 0: without it")
    parser.add_argument("--only", help="parts, for example start,kernels; a wrong name tells them all")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # gigabytes of work are removed then, too
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled, too
    seconds, runs = "s: median (least–most)", f"medians of {args.runs} interleaved runs"
    parts = {
        "start": ("Start", ["", "ms: median (least–most)", "aim"]),
        "conversions": (
            "Conversions of 727 M parameters (1.45 GB), 262k tokens",
            ["type", seconds, "`cp` and sync of the source", "ratio", "llama.cpp", "ratio", "aim"],
        ),
        "workers": (
            "Processes that share the work",
            ["type", "processes", seconds, "one / this", "of that, the writing", "limit", "aim"],
        ),
        "memory": (
            "Memory of all processes together",
            ["type", "MB, tokenizer read anew", "MB, tokenizer read before", "aim"],
        ),
        "machine": ("Two processes at once", ["", "one, ms a round", "two", "gain (2 at most)"]),
        "verification": (
            "`verify` against `convert`",
            ["type", "convert", "verify", "ratio", "convert, no cache", "verify, no cache", "ratio", "aim"],
        ),
        "kernels": ("Kernels, one thread", ["", "type", "quant, Melem/s", "ggml's C", "ratio", "aim"]),
    }
    wanted = args.only.split(",") if args.only else list(parts)
    refuse(parser, args, wanted, list(parts))
    say(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, numpy {np.__version__}, {runs}")
    with tempfile.TemporaryDirectory(dir=args.work) as name:
        bench = Bench(args, Path(name).resolve())
        for part in wanted:
            title, head = parts[part]
            table(title, head, getattr(bench, part)())


if __name__ == "__main__":
    main()

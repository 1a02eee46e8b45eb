"""Speed of quant against gguf-py and ggml's C, in million elements a second, as Markdown tables.

    python benchmarks/kernels.py [--threads N] [--rounds R] [--types Q4_0,Q4_K] [--scale S]

All contenders take turns on the same rows in one process, so a busy machine slows them alike; each figure is the
median over the rounds, each taken right after an untimed run. One thread is measured in its CPU time, several in
wall-clock time. Block types get matrices of 4 MB, as the slices are in which a converter reads a checkpoint, the
K-quants 8 MB and the 16-bit types 32 MB. The C is libggml-python's prebuilt library, called through ctypes over row
ranges. Every output is compared byte for byte with the C's before anything is timed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import libggml  # type: ignore[import-untyped]
import numpy as np
from gguf import GGMLQuantizationType, quants

import quant

COLUMNS = 4096
HEADER = (
    "| type | quant, 1 thread | quant, {n} threads | gguf-py | C, 1 thread | C, {n} threads "
    "| quant / C, 1 thread | quant / gguf-py |"
)
CLOCKS = (time.thread_time, time.perf_counter, time.thread_time, time.thread_time, time.perf_counter)
TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class Traits(ctypes.Structure):
    """The head of ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", TO_FLOAT),
    )


def load_c() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(next(Path(libggml.__file__).parent.rglob("libggml-base.so"))))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, size, size, size, pointer]
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return lib


def spread(rows: int, threads: int, pool: ThreadPoolExecutor, work: Callable[[int, int], Any]) -> None:
    """``work(start, stop)`` over equal row ranges, one a thread."""
    bounds = [rows * i // threads for i in range(threads + 1)]
    if threads == 1:
        work(0, rows)
    else:
        list(pool.map(work, bounds[:-1], bounds[1:]))


def gguf_py(call: Callable[[Any, Any], Any], data: Any, name: str) -> Callable[[], Any] | None:
    """The same through gguf-py, or None where it has no kernel."""
    kind = GGMLQuantizationType[name]
    try:
        call(data[:1], kind)
    except (NotImplementedError, KeyError):
        return None
    return lambda: call(data, kind)


def encode_contenders(lib: ctypes.CDLL, pool: ThreadPoolExecutor, x: Any, name: str, threads: int) -> list[Any]:
    rows, kind = len(x), GGMLQuantizationType[name].value
    ours = np.empty((rows, quant.TYPES[name].row_nbytes(COLUMNS)), np.uint8)
    theirs = np.empty_like(ours)
    encoders = [quant.Encoder(name, COLUMNS) for _ in range(threads)]

    def numpy(start: int, stop: int) -> None:
        encoders[start * threads // rows].encode(x[start:stop], ours[start:stop])

    def c(start: int, stop: int) -> None:
        lib.ggml_quantize_chunk(kind, x[start:].ctypes.data, theirs[start:].ctypes.data, 0, stop - start, COLUMNS, None)

    numpy(0, rows)
    c(0, rows)
    if not np.array_equal(ours, theirs):
        raise SystemExit(f"{name}: the bytes differ from ggml's")
    return [
        lambda: spread(rows, 1, pool, numpy),
        lambda: spread(rows, threads, pool, numpy),
        gguf_py(quants.quantize, x, name),
        lambda: spread(rows, 1, pool, c),
        lambda: spread(rows, threads, pool, c),
    ]


def decode_contenders(lib: ctypes.CDLL, pool: ThreadPoolExecutor, x: Any, name: str, threads: int) -> list[Any]:
    rows, data = len(x), quant.quantize(x, name)
    to_float = lib.ggml_get_type_traits(GGMLQuantizationType[name].value).contents.to_float
    ours, theirs = np.empty_like(x), np.empty_like(x)
    decoders = [quant.Decoder(name, COLUMNS) for _ in range(threads)]

    def numpy(start: int, stop: int) -> None:
        decoders[start * threads // rows].decode(data[start:stop], ours[start:stop])

    def c(start: int, stop: int) -> None:
        to_float(data[start:].ctypes.data, theirs[start:].ctypes.data, (stop - start) * COLUMNS)

    numpy(0, rows)
    c(0, rows)
    if not np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)):
        raise SystemExit(f"{name}: the values differ from ggml's")
    return [
        lambda: spread(rows, 1, pool, numpy),
        lambda: spread(rows, threads, pool, numpy),
        gguf_py(quants.dequantize, data, name),
        lambda: spread(rows, 1, pool, c),
        lambda: spread(rows, threads, pool, c),
    ]


def measure(contenders: list[Any], elements: int, rounds: int) -> list[float | None]:
    """Million elements a second of each contender, taking turns."""
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for spent, run, clock in zip(times, contenders, CLOCKS, strict=True):
            if run is not None:
                run()  # the last contender left its own data in the caches
                start = clock()
                run()
                spent.append(clock() - start)
    return [elements / median(spent) / 1e6 if spent else None for spent in times]


def row(name: str, speeds: list[float | None]) -> str:
    def shown(value: float | None, form: str = ".0f") -> str:
        return "–" if value is None else format(value, form if value >= 100 or form != ".0f" else ".1f")

    ours, _, python, c, _ = speeds
    ratios = [None if other is None or ours is None else ours / other for other in (c, python)]
    return f"| {name} | " + " | ".join([*map(shown, speeds), *(shown(r, ".2f") for r in ratios)]) + " |"


def table(make: Callable[..., list[Any]], args: argparse.Namespace, names: list[str]) -> Iterator[str]:
    yield HEADER.format(n=args.threads)
    yield "|---" * 8 + "|"
    lib, rng = load_c(), np.random.default_rng(0)
    with ThreadPoolExecutor(args.threads) as pool:
        for name in names:
            slow = make is encode_contenders and ("K" in name or "IQ" in name)
            repeats = args.rounds if slow else 5 * args.rounds
            size = 512 if slow else 2048 if name in ("F16", "BF16") else 256
            rows = max(args.threads, round(size * args.scale))
            x = (rng.standard_normal((rows, COLUMNS)) * 0.02).astype(np.float32)
            yield row(name, measure(make(lib, pool, x, name, args.threads), x.size, repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the size of the matrices")
    parser.add_argument("--types", default=",".join(name for name in quant.TYPES if name != "F32"))
    args = parser.parse_args()
    names = args.types.split(",")
    for title, make in (("Quantize", encode_contenders), ("Dequantize", decode_contenders)):
        sys.stdout.write(f"\n{title} (Melem/s)\n\n")
        for line in table(make, args, names):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

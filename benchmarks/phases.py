"""Where the time of one conversion goes, as a Markdown table.

    python benchmarks/phases.py DRAFTER TARGET TYPE OUTPUT [--threads N]

With --threads 1 the tensors are encoded in this process, and reading, checking or encoding, and writing are told
apart; the times of what is listed under a step are sums over its calls and part of the step's own.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import importlib  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

# (module, class or empty, function, what it does, what it is a part of)
STEPS = (
    ("dflash_convert.conversion", "", "prepare", "plan: config, headers, tokenizer, pair", ""),
    ("dflash_convert.vocab", "", "load_vocabulary", "the tokenizer", "prepare"),
    ("dflash_convert.conversion", "", "check", "the pair", "prepare"),
    ("dflash_convert.conversion", "", "layout", "header of the output", ""),
    ("dflash_convert.system", "", "reserve", "space for the output", ""),
    ("dflash_convert.conversion", "", "run_pieces", "tensors", ""),
    ("dflash_convert.checkpoint", "Reader", "into", "read", "run_pieces"),
    ("quant", "", "nonfinite_row", "look for NaN and Inf", "run_pieces"),
    ("quant", "Encoder", "encode", "encode", "run_pieces"),
    ("dflash_convert.encode.rows", "", "write", "write", "run_pieces"),
    ("dflash_convert.encode.rows", "", "start_writeback", "ask the disk to begin", "run_pieces"),
    ("os", "", "fsync", "wait for the disk", ""),
    ("dflash_convert.container.writer", "", "open_gguf", "read the header back", ""),
    ("dflash_convert.container.writer", "GgufOutput", "_name", "give the file its name", ""),
)
spent: dict[str, float] = {}


def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **given: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(*args, **given)
        finally:
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - begin

    return run


def main() -> None:
    drafter, target, kind, output, *more = sys.argv[1:]
    from dflash_convert.cli import main as cli

    importlib.import_module("dflash_convert.cli.convert")
    importlib.import_module("dflash_convert.pipeline")
    spent["imports"] = time.perf_counter() - BEGIN
    for module, owner, name, _, _ in STEPS:
        place = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        setattr(place, name, watched(name, getattr(place, name)))
    Path(output).unlink(missing_ok=True)
    os.sync()
    begin = time.perf_counter()
    try:
        cli(["convert", drafter, "--target-model-dir", target, "-t", kind, "-o", output, "-q", *more])
    except SystemExit as ended:
        if ended.code:
            raise
    whole = time.perf_counter() - begin
    rows = [("import", spent.pop("imports"), "")]
    rows += [(what, spent[name], part) for _, _, name, what, part in STEPS if name in spent]
    rest = whole - sum(seconds for _, seconds, part in rows[1:] if not part)
    rows.append(("everything else (command line, start of workers)", rest, ""))
    lines = [f"| {'&nbsp;&nbsp;of that: ' if part else ''}{what} | {seconds:.2f} |" for what, seconds, part in rows]
    print("| | seconds |\n|---|---|\n" + "\n".join(lines) + f"\n| **all** | **{whole + rows[0][1]:.2f}** |")  # noqa: T201


if __name__ == "__main__":
    main()

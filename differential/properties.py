"""What must hold of every variation, whatever llama.cpp's converter makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV
from dflash_convert.conversion import Conversion, Options, Source, prepare, write
from dflash_convert.errors import DflashError
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify
from differential.variations import Variation


def broken(v: Variation, directory: Path, *, plain: bool, workers: bool = False) -> list[str]:
    """The properties that do not hold, [] when all do; a variation that is refused must be refused in one sentence.

    ``workers``: the same bytes with two worker processes, too.
    """
    drafter, target = v.write(directory)
    pre = "qwen2" if v.tokenizer == "bytelevel" else None
    options = Options(outtypes=(v.outtype,), plain=plain, model_name="case", pre=pre, force_pair=True)
    source, read, out = Source(drafter), Target.read(target), directory / "out.gguf"
    try:
        conversion = prepare(source, read, options)
    except DflashError as error:
        text = str(error)
        sentence = text and "\n" not in text and "Traceback" not in text
        return [] if sentence else [f"refused without a sentence: {text!r}"]
    found = _deterministic(conversion, prepare(source, read, options)) + _complete(conversion)
    write(conversion, [out], threads=1)
    gguf = open_gguf(out)
    found += _reads_back(conversion, gguf)
    found += [f"verify: {text}" for text in verify(out, drafter, read, pre=pre, threads=1).differences]
    if workers:
        write(conversion, [directory / "two.gguf"], threads=2)
        if (directory / "two.gguf").read_bytes() != out.read_bytes():
            found.append("other bytes with two workers")
    return found


def _told(kv: KV) -> Any:
    return (kv.name, kv.type, kv.item, list(kv.value) if kv.item is not None else kv.value)


def _deterministic(first: Conversion, second: Conversion) -> list[str]:
    a, b = first.files[0], second.files[0]
    same = [_told(kv) for kv in a.keys] == [_told(kv) for kv in b.keys] and a.entries == b.entries
    return [] if same else ["a second plan differs from the first"]


def _complete(conversion: Conversion) -> list[str]:
    """Every source tensor is written or on the skip list."""
    used = {source.name for plan in conversion.description.tensors for source in plan.sources}
    skipped = {name for name, _ in conversion.description.skipped}
    # a quantized tensor's scales are parts of it
    lost = [name for name in conversion.checkpoint.tensors if name not in used | skipped and "scale" not in name]
    return [f"{name} is neither written nor skipped" for name in lost]


def _reads_back(conversion: Conversion, gguf: Gguf) -> list[str]:
    """The file holds the planned keys, each of its type, and the planned tensors."""
    plan = conversion.files[0]
    found = [] if list(gguf.keys) == [kv.name for kv in plan.keys] else ["the keys of the file are not those planned"]
    for kv in plan.keys:
        written = gguf.keys.get(kv.name)
        if written is not None and (written.type, written.item) != (kv.type, kv.item):
            found.append(f"key {kv.name} is read back as another type")
    shapes = [(info.name, info.shape, info.type) for info in gguf.tensors.values()]
    return found if shapes == [tuple(entry) for entry in plan.entries] else [*found, "other tensors than planned"]

"""The target's tokenizer files, each route of them, up to the finished keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from harness import ROOT, scratch

SIZE = 600
NAMES = (
    ("tokenizer.json",),
    ("tokenizer_config.json", "tokenizer.json"),
    ("tokenizer.model",),
    ("tekken.json",),
    ("qwen.tiktoken",),
    ("vocab.json", "merges.txt"),
    ("merges.txt", "vocab.json"),
    ("added_tokens.json", "vocab.json", "merges.txt"),
    ("chat_template.json", "tokenizer.json"),
    ("config.json", "tokenizer.json"),
)  # the fuzzed file first, then good ones that its route needs
GOOD = {
    "tokenizer.json": "fixtures/tiny-js/target/tokenizer.json",
    "vocab.json": "fixtures/tokenizers/slow/vocab.json",
    "merges.txt": "fixtures/tokenizers/slow/merges.txt",
}


def reader() -> Callable[[bytes], object]:
    from dflash_convert.container.writer import layout
    from dflash_convert.vocab import load_vocabulary

    directories: list[tuple[Path, str]] = []
    for number, names in enumerate(NAMES):
        where = scratch() / str(number)
        where.mkdir()
        for name in names[1:]:
            shutil.copy(ROOT / GOOD[name], where / name)
        directories.append((where, names[0]))

    def read(data: bytes) -> None:
        if not data:
            return
        where, name = directories[data[0] % len(directories)]
        (where / name).write_bytes(data[1:])
        layout(load_vocabulary(where, vocab_size=SIZE).keys(None), [])

    return read

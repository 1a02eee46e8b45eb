"""A target's GGUF on the Hub: which file stands for the repository, and its header by range requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dflash_convert.container.header import read_header
from dflash_convert.container.reader import Gguf
from dflash_convert.container.shards import SHARD
from dflash_convert.hub_ranges import remote

# files beside a model that are none, by the names that their makers give them
BESIDE = re.compile(r"mmproj|imatrix|(^|[-_.])(lora|vocab)[-_.]|^(dflash|dspark|eagle3|mtp)-", re.IGNORECASE)


def models_of(names: Sequence[str]) -> list[str]:
    """The GGUFs among ``names`` that look like models, of split ones the first file; by name."""
    found = []
    for name in sorted(names):
        last = PurePosixPath(name).name
        split = SHARD.match(last)
        if last.endswith(".gguf") and not BESIDE.search(last) and (split is None or int(split["number"]) == 1):
            found.append(name)
    return found


def remote_header(repository: str, commit: str, name: str) -> Gguf:
    """The header of ``name`` at ``commit``; the library's own errors pass."""
    with remote(repository, commit, name) as file:
        return read_header(Path(PurePosixPath(name).name), file.size, file.read)

"""A model in several GGUF files: keys in the first, tensors in all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import Gguf
from dflash_convert.errors import ContainerError, InputError

SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def all_shards(path: Path, main: Gguf) -> tuple[Path, ...]:
    """All files of a model that was split; every one must be there."""
    match = SHARD.match(path.name)
    count = keys_of(main).integer("split.count") or 1
    if count <= 1:
        return (path,)
    if match is None or int(match["count"]) != count:
        raise ContainerError(
            f"{path}: split.count is {count}, but the name does not end in -00001-of-{count:05d}.gguf",
            tip="give the shards the names they were made with",
        )
    names = shard_paths(path)
    if int(match["number"]) != 1:
        raise InputError(f"{path} is not the first shard", tip=f"give {names[0]}")
    missing = [p.name for p in names if not p.is_file()]
    if missing:
        raise InputError(f"{path}: the shard {', '.join(missing)} is missing", tip="download all shards into one place")
    return names


def shard_paths(path: Path) -> tuple[Path, ...]:
    """The files that belong to ``path``, by its name alone."""
    match = SHARD.match(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    return tuple(path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1))


def files_in(value: object, *but: str) -> Iterator[Path]:
    """Every path that a value and the values in it name, all shards of each; without ``value``'s fields ``but``."""
    if isinstance(value, Path):
        yield from shard_paths(value)
    elif isinstance(value, tuple):
        for each in value:
            yield from files_in(each)
    elif is_dataclass(value):
        for part in fields(value):
            if part.name not in but:
                yield from files_in(getattr(value, part.name))


def first_shard(path: Path) -> Path:
    """The file with the keys: ``path``, or the first of its siblings by name."""
    return shard_paths(path)[0]

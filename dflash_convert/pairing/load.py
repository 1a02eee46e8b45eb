"""Open drafter and target: GGUF files or directories, headers only."""

from __future__ import annotations

from pathlib import Path

from dflash_convert.checkpoint import read_config
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Overrides
from dflash_convert.errors import UsageError
from dflash_convert.families.detect import refuse_target
from dflash_convert.pairing.drafters import drafter_directory, drafter_gguf
from dflash_convert.pairing.targets import config_of, target_directory, target_gguf
from dflash_convert.pairing.view import DrafterView, TargetView


def open_pair(
    drafter: Path, target: Path, *, overrides: Overrides | None = None, target_name: str | None = None
) -> tuple[DrafterView, TargetView]:
    """Both sides, a drafter's directory as it would be converted (with ``overrides``) for that target.

    InputError for what cannot be read at all, UsageError for a path that is neither.
    """
    if drafter.is_dir():
        refuse_target(read_config(drafter), drafter.name, "dflash-convert check DRAFTER TARGET")
    if target.is_dir():
        config = read_config(target)
        view = target_directory(target, config, name=target_name)
    else:
        gguf = open_gguf(_file(target))
        config, view = config_of(gguf), target_gguf(gguf)
    if not drafter.is_dir():
        return drafter_gguf(open_gguf(_file(drafter))), view
    return drafter_directory(drafter, config, target if target.is_dir() else None, overrides), view


def _file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    return path

"""Open drafter and target: GGUF files or directories, headers only."""

from __future__ import annotations

from pathlib import Path

from dflash_convert import hub
from dflash_convert.checkpoint import read_config
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Overrides
from dflash_convert.families.detect import refuse_target
from dflash_convert.pairing.drafters import drafter_directory, drafter_gguf
from dflash_convert.pairing.targets import target_view
from dflash_convert.pairing.view import DrafterView, TargetView
from dflash_convert.target import Target


def open_pair(
    drafter: Path, target: Path | Target, *, overrides: Overrides | None = None
) -> tuple[DrafterView, TargetView]:
    """Both sides, a drafter's directory as it would be converted (with ``overrides``) for that target.

    InputError for what cannot be read at all, UsageError for a path that is neither.
    """
    if drafter.is_dir():
        refuse_target(read_config(drafter), drafter.name, "dflash-convert check DRAFTER TARGET")
    if isinstance(target, Path):
        target = Target.read(hub.existing(target))
    view = target_view(target)
    if not drafter.is_dir():
        return drafter_gguf(open_gguf(hub.existing(drafter))), view
    return drafter_directory(drafter, target, overrides), view

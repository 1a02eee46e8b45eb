"""File names that llama.cpp finds, and the command that runs a pair (rules of b11434's download and preset code)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

PREFIX = {"DFlash": "dflash-", "DFlash2": "dflash-", "DSpark": "dspark-", "EAGLE-3": "eagle3-", "MTP": "mtp-"}
SPEC_TYPE = {"dflash-": "draft-dflash", "dspark-": "draft-dspark", "eagle3-": "draft-eagle3", "mtp-": "draft-mtp"}


def prefix_of(family: str) -> str:
    return PREFIX.get(family, "dflash-")


def default_name(family: str, target_name: str, outtype: str) -> str:
    """``dflash-<Target>-<TYPE>.gguf``: llama.cpp takes a drafter by its lower-case prefix."""
    return f"{prefix_of(family)}{target_name}-{outtype.upper()}.gguf"


def max_drafts(family: str, block_size: int, sample_from_anchor: bool = True) -> int:
    """Tokens a block can draft: the anchor's slot drafts too when sampling starts from it (DSpark)."""
    return block_size if family == "DSpark" and sample_from_anchor else block_size - 1


def server_command(target: str | Path, drafter: str | Path, family: str, n_max: int, extra: Sequence[str] = ()) -> str:
    """The llama-server call for the pair, quoted for a shell."""
    spec = SPEC_TYPE[prefix_of(family)]
    call = ["llama-server", "-m", str(target), "-md", str(drafter), "--spec-type", spec]
    return shlex.join([*call, "--spec-draft-n-max", str(n_max), "-fa", "on", *extra])

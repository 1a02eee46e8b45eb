"""File names that llama.cpp finds, and the command that runs a pair."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from dflash_convert.llama import Variant

FIRST_GUESS = "n-max is a first guess: dflash-convert tune TARGET.gguf DRAFTER.gguf finds what pays here"


def default_name(variant: Variant, target_name: str, outtype: str, suffix: str = "") -> str:
    """``dflash-<Target>-<TYPE>.gguf``: llama.cpp takes a drafter by its lower-case prefix."""
    return f"{variant.prefix}{target_name}-{outtype.upper()}{suffix}.gguf"


def server_command(
    target: str | Path, drafter: str | Path, variant: Variant, n_max: int, extra: Sequence[str] = ()
) -> str:
    """The llama-server call for the pair, quoted for a shell."""
    call = ["llama-server", "-m", str(target), "-md", str(drafter), "--spec-type", variant.spec_type]
    return shlex.join([*call, "--spec-draft-n-max", str(n_max), "-fa", "on", *extra])

"""File names that llama.cpp finds, and the command that runs a pair."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from dflash_convert.errors import DflashError, UsageError
from dflash_convert.llama import Variant

MAX_NAME = 200  # bytes of a target's name; method, type and head come to it, and 255 is the most that file systems have
FIRST_GUESS = "n-max is a first guess: dflash-convert tune TARGET.gguf DRAFTER.gguf finds what pays here"


# directories that are called after what they are, not after their model
NO_MODEL = re.compile(
    r"(the[-_ ]?)?(targets?|models?|llms?|main|master|snapshots?|checkpoints?([-_]\d+)?|weights?|base|hf|files?"
    r"|downloads?|out(put)?s?|final|merged|tmp|temp|new|latest|\d+|[0-9a-f]{7,64})",
    re.IGNORECASE,
)


def says_no_model(name: str) -> bool:
    """Whether a directory's name (``target``, ``main``, a commit's hash) says nothing about the model in it."""
    return NO_MODEL.fullmatch(name) is not None


def check_target_name(name: str | None, option: str = "--target-name", refuse: type[DflashError] = UsageError) -> None:
    """``refuse`` for a name that cannot be a part of file names; ``option`` gave it."""
    if name and "/" in name:
        raise refuse(f"{option} {name} holds a slash", tip="it is a part of file names; -o gives a directory")
    count = len(os.fsencode(name or ""))
    if count > MAX_NAME:
        raise refuse(
            f"{option} has {count} bytes, at most {MAX_NAME} are possible",
            tip="it is a part of file names, which have at most 255 bytes",
        )


def default_name(variant: Variant, target_name: str, outtype: str, suffix: str = "") -> str:
    """``dflash-<Target>-<TYPE>.gguf``: llama.cpp takes a drafter by its lower-case prefix."""
    return f"{variant.prefix}{target_name}-{outtype.upper()}{suffix}.gguf"


def server_command(
    target: str | Path, drafter: str | Path, variant: Variant, n_max: int, extra: Sequence[str] = ()
) -> str:
    """The llama-server call for the pair, quoted for a shell."""
    call = ["llama-server", "-m", str(target), "-md", str(drafter), "--spec-type", variant.spec_type]
    return shlex.join([*call, "--spec-draft-n-max", str(n_max), "-fa", "on", *extra])

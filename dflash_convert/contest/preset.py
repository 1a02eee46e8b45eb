"""The winner as llama-server's command and as a preset."""

from __future__ import annotations

import shlex
from pathlib import Path

from dflash_convert.contest.candidates import Candidate
from dflash_convert.engine.preset import preset_ini
from dflash_convert.engine.settings import arguments


def options(candidate: Candidate) -> list[tuple[str, str]]:
    """llama-server's long options without their dashes, and values."""
    rows = [("spec-type", candidate.spec_type)] if candidate.methods else []
    if candidate.drafter:
        rows += [("spec-draft-model", str(candidate.drafter)), ("spec-draft-n-max", str(candidate.n_max))]
        rows += [("spec-draft-p-min", f"{candidate.p_min:g}")] if candidate.p_min else []
    return [*rows, *candidate.extra]


def command(target: Path, candidate: Candidate) -> str:
    """The llama-server call, quoted for a shell."""
    call = ["llama-server", "-m", str(target)]
    return shlex.join([*call, *arguments(tuple(options(candidate))), "-fa", "on"])


def text(target: Path, candidate: Candidate) -> str:
    """``preset.ini`` for ``llama-server --models-preset``; paths as they were given. UsageError for a path that cannot
    stand in one."""
    return preset_ini({target.stem: [("model", str(target)), *options(candidate)]})

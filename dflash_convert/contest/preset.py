"""The winner as llama-server's command and as a preset."""

from __future__ import annotations

import shlex
from pathlib import Path

from dflash_convert.contest.candidates import Candidate


def command(target: Path, candidate: Candidate) -> str:
    """The llama-server call, quoted for a shell."""
    call = ["llama-server", "-m", str(target)]
    if candidate.methods:
        call += ["--spec-type", candidate.spec_type]
    if candidate.drafter:
        call += ["-md", str(candidate.drafter), "--spec-draft-n-max", str(candidate.n_max)]
        call += ["--spec-draft-p-min", f"{candidate.p_min:g}"] if candidate.p_min else []
    return shlex.join([*call, "-fa", "on"])


def text(target: Path, candidate: Candidate) -> str:
    """``preset.ini`` for ``llama-server --models-preset``; paths as they were given."""
    lines = ["version = 1", "", f"[{target.stem}]", "flash-attn = on", f"model = {target}"]
    if candidate.methods:
        lines.append(f"spec-type = {candidate.spec_type}")
    if candidate.drafter:
        lines += [f"spec-draft-model = {candidate.drafter}", f"spec-draft-n-max = {candidate.n_max}"]
        lines += [f"spec-draft-p-min = {candidate.p_min:g}"] if candidate.p_min else []
    return "\n".join(lines) + "\n"

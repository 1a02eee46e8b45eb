"""The llama.cpp calls and the preset of a packaged pair, with the package's real file names."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from dflash_convert.engine.preset import preset_ini
from dflash_convert.engine.settings import arguments
from dflash_convert.errors import UsageError
from dflash_convert.release.contests import BestSettings
from dflash_convert.release.manifest import PRESET
from dflash_convert.text import broken_command

HUB_GGUF = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)
PLACEHOLDER = "TARGET.gguf"


@dataclass(frozen=True)
class TargetGguf:
    """The target's GGUF: a file beside the drafter, or a Hub repository with an optional quantization tag."""

    name: str
    on_hub: bool = False

    @property
    def arguments(self) -> list[str]:
        return ["-hf" if self.on_hub else "-m", self.name]


def parse_target(text: str | None) -> TargetGguf | None:
    """``--target-gguf``: a file on this machine, or ``owner/name[:TAG]`` on the Hub."""
    if text is None:
        return None
    path = Path(text)
    if path.is_file():
        return TargetGguf(path.name)
    if path.suffix != ".gguf" and HUB_GGUF.fullmatch(text):
        return TargetGguf(text, on_hub=True)
    raise UsageError(
        f"--target-gguf {text} is neither a file nor a Hub repository",
        tip="give a GGUF on this machine, or owner/name or owner/name:Q4_K_M",
    )


def program_call(program: str, target: TargetGguf | None, drafter: str, settings: BestSettings) -> str:
    """A ``llama-server`` or ``llama-cli`` call, quoted for a shell and broken into lines."""
    model = (target or TargetGguf(PLACEHOLDER)).arguments
    given = arguments(tuple(options(settings)))
    return "\n".join(broken_command(shlex.join([program, *model, "-md", drafter, *given, "-fa", "on"])))


def options(settings: BestSettings) -> list[tuple[str, str]]:
    """llama-server's long options without their dashes, and values."""
    rows = [("spec-type", settings.spec_type)]
    rows += [("spec-draft-n-max", str(settings.n_max))] if settings.n_max else []
    rows += [("spec-draft-p-min", f"{settings.p_min:g}")] if settings.p_min else []
    return [*rows, *settings.extra]


def preset_text(name: str, target: TargetGguf, drafters: list[str], settings: BestSettings, comment: str = "") -> str:
    """``preset.ini`` for ``llama-server --models-preset``: one section a drafter; paths are relative to the
    server's working directory, as llama.cpp reads them (tools/server/README.md).
    """
    sections = {}
    for drafter in drafters:
        rows = [("hf-repo" if target.on_hub else "model", target.name)]
        rows += [("spec-draft-model", drafter), *options(settings)]
        sections[name if len(drafters) == 1 else f"{name}-{_encoding(drafter)}"] = rows
    start = f"Start in the drafters' directory: llama-server --models-preset {PRESET}"
    return preset_ini(sections, start, *([comment] if comment else []))


def _encoding(drafter: str) -> str:
    return drafter.removesuffix(".gguf").rsplit("-", 1)[-1]

"""The embedded engine: the ``xllamacpp`` package in a child process."""

from __future__ import annotations

import json
from importlib import metadata, util

from dflash_convert import child, llama
from dflash_convert.engine.trace import EngineInfo, Launch
from dflash_convert.engine.worker import CONFIG
from dflash_convert.errors import UsageError

PACKAGE = "xllamacpp"


def spec_types() -> dict[str, str]:
    """llama.cpp's name of each drafting method -> the package's name of the same."""
    return {name: member(name) for name in (*llama.spec_types(), *llama.NGRAMS)}


def member(name: str) -> str:
    return "COMMON_SPECULATIVE_TYPE_" + name.upper().replace("-", "_")


def installed() -> str | None:
    """The package's version, or None when it is not installed. Does not import it."""
    if util.find_spec(PACKAGE) is None:
        return None
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"


def info() -> EngineInfo | None:
    version = installed()
    if version is None:
        return None
    return EngineInfo("embedded", None, f"{PACKAGE} {version}", tuple(spec_types()), found_by="package")


def command(info: EngineInfo, launch: Launch, port: int, api_key: str) -> tuple[list[str], dict[str, str]]:
    """The child's command line and environment; the key travels in the environment, out of sight of ``ps``."""
    if launch.device or launch.draft_device or launch.extra_args:
        raise UsageError(
            "the embedded engine takes neither --device, --spec-draft-device nor arguments after --",
            tip="name a llama-server with --llama-server PATH or DFLASH_LLAMA_SERVER",
        )
    config = {
        "target": str(launch.target),
        "drafter": str(launch.drafter) if launch.drafter else None,
        "spec_types": [member(name) for name in launch.methods],
        "n_max": launch.n_max,
        "p_min": launch.p_min,
        "ctx_size": launch.ctx_size * launch.parallel,
        "parallel": launch.parallel,
        "threads": launch.threads,
        "gpu_layers": launch.gpu_layers,
        "verbosity": launch.verbosity,
        "splits_only": launch.splits_only,
        "settings": launch.settings,
        "port": port,
        "api_key": api_key,
    }
    return child.command("engine.worker"), {CONFIG: json.dumps(config)}

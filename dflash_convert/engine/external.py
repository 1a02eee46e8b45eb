"""The external engine: a ``llama-server`` program."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dflash_convert.engine import settings
from dflash_convert.engine.client import HOST
from dflash_convert.engine.failures import MISSING, EngineRunError
from dflash_convert.engine.trace import EngineInfo, Launch

PROGRAM = "llama-server"
ENVIRONMENT = "DFLASH_LLAMA_SERVER"
PROBE_TIMEOUT = 20.0
DRAFT_CACHE_OPTIONS = frozenset(
    ("-ctkd", "-ctvd", "--cache-type-k-draft", "--cache-type-v-draft", "--spec-draft-type-k", "--spec-draft-type-v")
)


def command(info: EngineInfo, launch: Launch, port: int, api_key: str) -> tuple[list[str], dict[str, str]]:
    """llama-server's command line and environment. Arguments of the user come last, so they win."""
    place = ["--host", HOST, "--port", str(port), "--jinja", "-lv", str(launch.verbosity)]
    return [str(info.path), *_loaded(launch), *place, *_set(launch)], {"LLAMA_API_KEY": api_key}


def shown(info: EngineInfo, launch: Launch) -> str:
    """What a start runs, for people: the engine, and its settings as llama-server's options."""
    place = f" ({info.path})" if info.path else ""
    words = shlex.join([*_loaded(launch), *_set(launch)])
    return f"starting {info.name}{place}: {words}; the end of its log, a file without a name, is shown if it fails"


def _loaded(launch: Launch) -> list[str]:
    return ["-m", str(launch.target), "-c", str(launch.ctx_size * launch.parallel), "-np", str(launch.parallel)]


def _set(launch: Launch) -> list[str]:
    """All other options that decide what runs, the user's own last."""
    args = []
    if launch.drafter:
        args += ["-md", str(launch.drafter)]
    if launch.methods:
        args += ["--spec-type", ",".join(launch.methods)]
    if launch.drafter:
        args += ["--spec-draft-n-max", str(launch.n_max)]
        if launch.p_min is not None:
            args += ["--spec-draft-p-min", f"{launch.p_min:g}"]
        said = {name for name, _ in launch.settings}
        args += settings.arguments(tuple((name, "f16") for name in settings.DRAFT_CACHE if name not in said))
        if launch.draft_device:
            args += ["--spec-draft-device", launch.draft_device]
    if launch.device:
        args += ["--device", launch.device]
    if launch.gpu_layers is not None:
        args += ["-ngl", str(launch.gpu_layers)]
    if launch.threads:
        args += ["-t", str(launch.threads)]
    return [*args, *settings.arguments(launch.settings), *launch.extra_args]


def quantizes_draft_cache(args: tuple[str, ...]) -> str | None:
    """The user's option that takes the drafter's cache away from f16, or None."""
    for option, value in itertools.pairwise(args):
        if option in DRAFT_CACHE_OPTIONS and value.lower() not in ("f16", "f32", "bf16"):
            return f"{option} {value}"
    return None


def locate(option: str | None, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Path of llama-server and where it was named: the option, then the environment, then PATH."""
    for name, source in ((option, "--llama-server"), (environment.get(ENVIRONMENT), ENVIRONMENT)):
        if name:
            return _executable(name, source), source
    found = shutil.which(PROGRAM, path=environment.get("PATH"))
    return (found, "PATH") if found else None


def _executable(name: str, source: str) -> str:
    path = Path(name).expanduser()
    if path.is_dir():
        path /= PROGRAM
    found = shutil.which(str(path))
    if found is None:
        what = "is not executable" if path.exists() else "does not exist"
        raise EngineRunError(MISSING, f"{source}: {path} {what}", tip="give the path of llama.cpp's llama-server")
    return found


def info(path: str, found_by: str) -> EngineInfo:
    """Ask a llama-server for its build, its drafting methods and its devices; what it does not tell is empty."""
    try:
        version, help_text, devices = (_ask(path, o) for o in ("--version", "--help", "--list-devices"))
    except OSError as error:
        return EngineInfo(PROGRAM, path, "", problem=f"{path} cannot be run: {error.strerror}", found_by=found_by)
    build = re.search(r"version: *([^\n]+)", version)
    kinds = re.search(r"--spec-type[ \t]+(\S+)", help_text)
    known = tuple(kinds[1].strip("[]<>").replace("|", ",").split(",")) if kinds else ()
    problem = None
    if help_text and not kinds:
        problem = f"{path} has no option --spec-type: it is not a llama-server, or too old to draft with DFlash"
    name = build[1].strip() if build else ""
    options = tuple(dict.fromkeys(re.findall(r"--([a-z][a-z0-9-]+)", help_text)))
    return EngineInfo(PROGRAM, path, name, known, parse_devices(devices), problem, found_by, options)


def parse_devices(text: str) -> tuple[str, ...]:
    """Device names from ``--list-devices``: indented ``CUDA0: name (24000 MiB, …)`` lines."""
    return tuple(m[1].strip() for m in re.finditer(r"^ +(\w+: [^\n]+)$", text, re.MULTILINE))


def _ask(path: str, option: str) -> str:
    """What the program prints for an option; nothing when it does not come to an end."""
    try:
        done = subprocess.run(
            [path, option], capture_output=True, stdin=subprocess.DEVNULL, timeout=PROBE_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")

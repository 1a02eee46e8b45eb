"""What this machine has for the job, what is wrong, and the one thing to do about each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_convert import __version__
from dflash_convert.errors import DflashError
from dflash_convert.llama import spec_types

Severity = Literal["ok", "note", "warning", "error"]
PYTHON = (3, 10)
# distribution -> (least version, what it is for); the same versions as in pyproject.toml, a test compares them
NEEDED = {
    "click": ("8.1.7", "the command line"),
    "gguf": ("0.17", "names in general.* keys"),
    "huggingface_hub": ("0.34", "downloads and publishing"),
    "numpy": ("1.26.4", "every conversion"),
    "safetensors": ("0.6", "checkpoints"),
    "sentencepiece": ("0.2.1", "targets with a tokenizer.model"),
    "tokenizers": ("0.21", "recognising pre-tokenizers"),
    "tqdm": ("4.66.3", "progress bars"),
}
OPTIONAL = {
    "xllamacpp": ("2026.10.11549", "engine", "validate without a llama-server"),
    "distributed": ("2026.1", "cluster", "batch --scheduler"),
}
LOW_SPACE = 5 * 10**9  # bytes; the published drafters have 0.5 to 4 GB, and a conversion needs its output beside
TIMEOUT = 5.0  # seconds for the Hub to answer


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``cure`` is what to do, or None; ``exit_code`` counts for errors only."""

    area: str
    name: str
    value: str
    severity: Severity = "ok"
    cure: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Report:
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """The worst error's code, 0 when nothing stands in the way."""
        return max((f.exit_code for f in self.findings if f.severity == "error"), default=0)


def diagnose(
    *,
    llama_server: str | None = None,
    offline: bool = False,
    environment: Mapping[str, str] = os.environ,
    directory: Path = Path(),
) -> Report:
    """Look at Python, packages, engines, disk and Hub. Takes some seconds; ``offline`` asks no Hub."""
    areas: tuple[Callable[[], list[Finding]], ...] = (
        _python,
        packages,
        lambda: engines(llama_server, environment),
        lambda: disk(directory),
        lambda: hub(offline),
    )
    return Report(tuple(finding for area in areas for finding in area()))


def _python() -> list[Finding]:
    version = platform.python_version()
    wanted = ".".join(map(str, PYTHON))
    good = sys.version_info >= PYTHON
    cure = None if good else f"install Python {wanted} or newer"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [
        Finding("program", "dflash-convert", __version__),
        Finding("program", "python", version, "ok" if good else "error", cure, 1),
        Finding("program", "system", f"{platform.system()} {platform.machine()}, {cores} cores"),
    ]


def packages() -> list[Finding]:
    found = []
    for name, (least, purpose) in NEEDED.items():
        version, problem = _version(name, least)
        cure = f"pip install '{name}>={least}'  ({purpose})" if problem else None
        found.append(Finding("packages", name, version, "error" if problem else "ok", cure, 1))
    for name, (least, extra, purpose) in OPTIONAL.items():
        version, problem = _version(name, least)
        cure = f"pip install 'dflash-convert[{extra}]'  ({purpose})" if problem else None
        found.append(Finding("packages", name, version, "note" if problem else "ok", cure))
    return found


def _version(name: str, least: str) -> tuple[str, bool]:
    """The installed version in words, and whether it is missing or too old."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed", True
    if _numbers(version) < _numbers(least):
        return f"{version}, at least {least} is needed", True
    return version, False


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:4])


def engines(llama_server: str | None, environment: Mapping[str, str]) -> list[Finding]:
    from dflash_convert.engine.find import INSTALL, find_engines

    try:
        engines = find_engines(llama_server, environment)
    except DflashError as error:
        return [Finding("engines", "llama.cpp", str(error), "error", error.tip, error.exit_code)]
    found: list[Finding] = []
    usable = False
    for engine in engines:
        where = f"{engine.build} ({engine.found_by or 'package'}: {engine.path})" if engine.path else engine.build
        if engine.problem:
            found.append(Finding("engines", engine.kind, engine.problem, "warning", INSTALL))
            continue
        found.append(Finding("engines", engine.kind, where))
        missing = [kind for kind in spec_types() if not engine.knows(kind)]
        known = ", ".join(kind for kind in spec_types() if engine.knows(kind)) or "no drafting method of this family"
        cure = f"update llama.cpp: it does not know {', '.join(missing)}" if missing else None
        found.append(Finding("engines", "knows", known, "warning" if missing else "ok", cure))
        found += [Finding("engines", "device", device) for device in engine.devices]
        usable = usable or engine.knows(spec_types()[0])
    if not usable:
        found.append(Finding("engines", "llama.cpp", "none that can run a DFlash pair", "error", INSTALL, 7))
    return found


def disk(directory: Path) -> list[Finding]:
    from huggingface_hub import constants

    return [
        _space("working directory", directory, "free some space, or write elsewhere with -o"),
        _space("Hub cache", Path(constants.HF_HUB_CACHE), "free some space, or set HF_HOME to a larger disk"),
    ]


def _space(name: str, path: Path, cure: str) -> Finding:
    """Free space where ``path`` is or will be; low when a drafter may not fit."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB free ({path.absolute()})"
    if not os.access(place, os.W_OK):
        return Finding(
            "disk", name, f"not writable ({path.absolute()})", "warning", "choose a directory you may write to"
        )
    low = free < LOW_SPACE
    return Finding("disk", name, text, "warning" if low else "ok", cure if low else None)


def hub(offline: bool) -> list[Finding]:
    """Endpoint and login; the token itself is never shown."""
    from huggingface_hub import constants, get_token

    found = [Finding("hub", "endpoint", constants.ENDPOINT)]
    token = get_token()
    login = "hf auth login, or set HF_TOKEN (needed for gated models and publish)"
    if constants.HF_HUB_OFFLINE or offline:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "not asked (--offline)"
        found.append(Finding("hub", "connection", why, "note", "unset HF_HUB_OFFLINE" if not offline else None))
        found.append(
            Finding(
                "hub",
                "login",
                "a token is set" if token else "no token",
                "ok" if token else "note",
                None if token else login,
            )
        )
        return found
    status = _status(f"{constants.ENDPOINT}/api/whoami-v2", token)
    if status is None:
        cure = "check the network, the proxy and HF_ENDPOINT; local directories need no Hub"
        found.append(Finding("hub", "connection", "no answer", "warning", cure))
        return found
    found.append(Finding("hub", "connection", "answers"))
    if token is None:
        found.append(Finding("hub", "login", "no token", "note", login))
    elif status == 200:
        found.append(Finding("hub", "login", "logged in"))
    else:
        cure = "get a new token and run hf auth login, or unset HF_TOKEN"
        found.append(Finding("hub", "login", f"the token is refused (status {status})", "warning", cure))
    return found


def _status(url: str, token: str | None) -> int | None:
    """The HTTP status of one GET, or None without an answer; only web addresses are opened."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        return None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, ValueError):
        return None

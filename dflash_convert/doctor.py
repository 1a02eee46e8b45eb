"""What this machine has for the job, what is wrong, and the one thing to do about each problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dflash_convert import __version__, system
from dflash_convert.engine.find import find_engines, install_tip
from dflash_convert.errors import DflashError
from dflash_convert.installed import PACKAGE, install_command
from dflash_convert.llama import spec_types
from dflash_convert.text import size

Severity = Literal["ok", "note", "warning", "error"]
TIMEOUT = 5.0  # seconds for the Hub to answer
EXTRAS = {"engine": "validate without a llama-server", "cluster": "batch --scheduler"}
LOW_SPACE = 5 * 10**9  # bytes; the published drafters have 0.5 to 4 GB, and a conversion needs its output beside


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report. ``cure`` is what to do, or None; ``exit_code`` counts for errors only."""

    area: str
    name: str
    value: str
    severity: Severity = "ok"
    cure: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Report:
    findings: tuple[Diagnosis, ...]

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
    areas: tuple[Callable[[], list[Diagnosis]], ...] = (
        _program,
        packages,
        kernels,
        lambda: engines(llama_server, environment),
        lambda: disk(directory),
        lambda: hub(offline),
    )
    return Report(tuple(finding for area in areas for finding in area()))


def _program() -> list[Diagnosis]:
    return [
        Diagnosis("program", PACKAGE, __version__),
        Diagnosis("program", "python", platform.python_version()),
        Diagnosis("program", "system", f"{platform.system()} {platform.machine()}, {system.cores()} cores"),
    ]


def kernels(place: str | None = None) -> list[Diagnosis]:
    """Whether ``quant``, a generic name, is the package beside this one; ``place`` is where Python finds it."""
    spec = None if place else importlib.util.find_spec("quant")
    found = Path(place or (spec.origin if spec and spec.origin else "nowhere"))
    if found.is_file() and found.resolve().parents[1] == Path(__file__).resolve().parents[1]:
        return []
    cure = "pip uninstall what brought it (its directory says), or use an environment of its own"
    return [Diagnosis("packages", "quant", f"another package of this name comes first: {found}", "error", cure, 1)]


def packages() -> list[Diagnosis]:
    """What the package's own metadata asks for: Python, its dependencies, and those of the extras of EXTRAS."""
    try:
        metadata = importlib.metadata.metadata(PACKAGE)
        requirements = [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or ()]
    except importlib.metadata.PackageNotFoundError:
        cure = install_command()
        return [Diagnosis("packages", PACKAGE, "not installed, so its requirements are unknown", "warning", cure)]
    python = SpecifierSet(metadata["Requires-Python"] or "")
    good = python.contains(platform.python_version(), prereleases=True)
    found = (
        [] if good else [Diagnosis("packages", "python", f"{python} is needed", "error", "install a newer Python", 1)]
    )
    for wanted in requirements:
        if _applies(wanted):
            found.append(_package(wanted, "error", f"pip install '{wanted.name}{wanted.specifier}'"))
    for extra, purpose in EXTRAS.items():
        cure = f"{install_command(extra)}  ({purpose})"
        found += [_package(r, "note", cure) for r in requirements if not _applies(r) and _applies(r, extra)]
    return found


def _applies(wanted: Requirement, extra: str = "") -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _package(wanted: Requirement, severity: Severity, cure: str) -> Diagnosis:
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return Diagnosis("packages", wanted.name, "not installed", severity, cure, 1)
    if not wanted.specifier.contains(version, prereleases=True):
        return Diagnosis("packages", wanted.name, f"{version}, {wanted.specifier} is needed", severity, cure, 1)
    return Diagnosis("packages", wanted.name, version)


def engines(llama_server: str | None, environment: Mapping[str, str]) -> list[Diagnosis]:
    try:
        engines = find_engines(llama_server, environment)
    except DflashError as error:
        return [Diagnosis("engines", "llama.cpp", str(error), "error", error.tip, error.exit_code)]
    found: list[Diagnosis] = []
    usable = False
    for engine in engines:
        where = f"{engine.build} ({engine.found_by or 'package'}: {engine.path})" if engine.path else engine.build
        if engine.problem:
            found.append(Diagnosis("engines", engine.kind, engine.problem, "warning", install_tip()))
            continue
        found.append(Diagnosis("engines", engine.kind, where))
        missing = [kind for kind in spec_types() if not engine.knows(kind)]
        known = ", ".join(kind for kind in spec_types() if engine.knows(kind)) or "no drafting method of this family"
        cure = f"update llama.cpp: it does not know {', '.join(missing)}" if missing else None
        found.append(Diagnosis("engines", "knows", known, "warning" if missing else "ok", cure))
        found += [Diagnosis("engines", "device", device) for device in engine.devices]
        usable = usable or engine.knows(spec_types()[0])
    if not usable:
        found.append(Diagnosis("engines", "llama.cpp", "none that can run a DFlash pair", "error", install_tip(), 7))
    return found


def disk(directory: Path) -> list[Diagnosis]:
    from huggingface_hub import constants

    return [
        _space("working directory", directory, "free some space, or write elsewhere with -o"),
        _space("Hub cache", Path(constants.HF_HUB_CACHE), "free some space, or set HF_HOME to a larger disk"),
    ]


def _space(name: str, path: Path, cure: str) -> Diagnosis:
    """Free space where ``path`` is or will be; low when a drafter may not fit."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{size(free)} free ({path.absolute()})"
    if not os.access(place, os.W_OK):
        return Diagnosis(
            "disk", name, f"not writable ({path.absolute()})", "warning", "choose a directory you may write to"
        )
    low = free < LOW_SPACE
    return Diagnosis("disk", name, text, "warning" if low else "ok", cure if low else None)


def hub(offline: bool) -> list[Diagnosis]:
    """Endpoint and login; the token itself is never shown."""
    from huggingface_hub import constants, get_token

    found = [Diagnosis("hub", "endpoint", constants.ENDPOINT)]
    token = get_token()
    login = "hf auth login, or set HF_TOKEN (needed for gated models and publish)"
    if constants.HF_HUB_OFFLINE or offline:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "not asked (--offline)"
        found.append(Diagnosis("hub", "connection", why, "note", "unset HF_HUB_OFFLINE" if not offline else None))
        found.append(
            Diagnosis(
                "hub",
                "login",
                "a token is set" if token else "no token",
                "ok" if token else "note",
                None if token else login,
            )
        )
        return found
    if not _answers():
        cure = "check the network, the proxy and HF_ENDPOINT; local directories need no Hub"
        found.append(Diagnosis("hub", "connection", "no answer", "warning", cure))
        return found
    found.append(Diagnosis("hub", "connection", "answers"))
    refusal = _refusal(token) if token else None
    if token is None:
        found.append(Diagnosis("hub", "login", "no token", "note", login))
    elif refusal is None:
        found.append(Diagnosis("hub", "login", "logged in"))
    else:
        cure = "get a new token and run hf auth login, or unset HF_TOKEN"
        found.append(Diagnosis("hub", "login", f"the token is refused ({refusal})", "warning", cure))
    return found


def _answers() -> bool:
    """Whether the Hub answers at all; the library's own calls would wait without an end."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # the library's client has changed, and its errors with it
        return False
    return True


def _refusal(token: str) -> str | None:
    """Why the Hub does not take the token, or None."""
    from huggingface_hub import HfApi

    try:
        HfApi().whoami(token)
    except Exception as error:  # as above; its text is left out, since it may quote the token
        status = getattr(getattr(error, "response", None), "status_code", None)
        return type(error).__name__ if status is None else f"status {status}"
    return None

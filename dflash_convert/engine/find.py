"""Which engines this machine has, and which one a command should use."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping

from dflash_convert import child
from dflash_convert.engine import embedded, external
from dflash_convert.engine.failures import MISSING, OPTION, EngineRunError
from dflash_convert.engine.trace import EngineInfo, Launch
from dflash_convert.text import reason

PROBE_TIMEOUT = 60.0


def install_tip() -> str:
    """How this installation gets an engine."""
    from dflash_convert.installed import install_command  # importlib.metadata costs milliseconds

    return f"{install_command('engine')}, or name a llama-server with --llama-server PATH"


def find_engines(llama_server: str | None = None, environment: Mapping[str, str] = os.environ) -> list[EngineInfo]:
    """Every engine found, the embedded one first, each asked for its build, methods and devices.

    An engine that cannot be used is listed with its ``problem``. Takes about a second.
    """
    found = []
    package = embedded.info()
    if package:
        found.append(probe_package(package))
    try:
        place = external.locate(llama_server, environment)
    except EngineRunError as failure:
        name = llama_server or environment.get(external.ENVIRONMENT)
        found.append(EngineInfo(external.PROGRAM, name, "", problem=str(failure)))
        return found
    if place:
        found.append(external.info(*place))
    return found


def choose(
    llama_server: str | None,
    launch: Launch | None = None,
    environment: Mapping[str, str] = os.environ,
) -> EngineInfo:
    """The engine to use: a llama-server named by option or environment, else the embedded one, else PATH.

    Device options and extra arguments need a llama-server, so they pass the embedded one over. Raises
    :class:`EngineRunError` when there is none, or when it does not know the drafting method.
    """
    place = external.locate(llama_server, environment)
    package = embedded.info()
    wants_server = launch is not None and (launch.device or launch.draft_device or launch.extra_args)
    if place and (place[1] != "PATH" or wants_server or package is None):
        engine = external.info(*place)
    elif package and not wants_server:
        engine = probe_package(package)
    elif package:
        raise EngineRunError(
            MISSING,
            "device options and arguments after -- need a llama-server, and none was found",
            tip=f"name one with --llama-server PATH or {external.ENVIRONMENT}",
        )
    else:
        raise EngineRunError(MISSING, "no llama.cpp was found: neither xllamacpp nor llama-server", tip=install_tip())
    if engine.problem:
        raise EngineRunError(MISSING, engine.problem, tip=install_tip())
    return engine


def require(engine: EngineInfo, spec_type: str) -> None:
    """Raise :class:`EngineRunError` when the engine says what it knows and the drafting method is not in it."""
    if engine.spec_types and not all(map(engine.knows, spec_type.split(","))):
        known = ", ".join(s for s in engine.spec_types if s.startswith("draft-")) or "none"
        raise EngineRunError(
            OPTION,
            f"{engine.name} does not know the drafting method {spec_type} (it knows {known})",
            tip="update llama.cpp",
        )


def probe_package(info: EngineInfo) -> EngineInfo:
    """Import xllamacpp in a child, where a broken build can do no harm, and ask what it has."""
    try:
        done = subprocess.run(
            child.command("engine.probe"),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"not within {PROBE_TIMEOUT:g} s" if late else reason(error)
        return dataclasses.replace(info, spec_types=(), problem=f"xllamacpp does not answer: {why}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"])[-1]
        return dataclasses.replace(info, spec_types=(), problem=f"xllamacpp cannot be used: {last}")
    kinds = tuple(name for name, member in embedded.spec_types().items() if member in answer["spec_types"])
    return dataclasses.replace(
        info, spec_types=kinds, devices=tuple(answer["devices"]), options=tuple(answer["options"])
    )

"""Settings of a start by llama-server's long option names: as its arguments, and as what the embedded engine sets.

Values are text as in a preset: a switch is ``true`` or ``false``. What an engine at hand has is asked, not assumed
(``EngineInfo.options``): llama-server's help, the fields of the package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Settings = tuple[tuple[str, str], ...]
SWITCH = {"true": True, "false": False}
DRAFT_CACHE = ("spec-draft-type-k", "spec-draft-type-v")


def _switch(_: Any, value: str) -> bool:
    return SWITCH[value]


def _number(_: Any, value: str) -> int:
    return int(value)


def _length(_: Any, value: str) -> float:
    return float(value)


def _cache_type(package: Any, value: str) -> Any:
    return getattr(package.ggml_type, f"GGML_TYPE_{value.upper()}")


# option -> the package's fields of the same meaning, and its value from text
FIELDS: Mapping[str, tuple[tuple[str, ...], Callable[[Any, str], Any]]] = {
    "spec-draft-type-k": (("speculative.draft.cache_type_k",), _cache_type),
    "spec-draft-type-v": (("speculative.draft.cache_type_v",), _cache_type),
    "spec-draft-ngl": (("speculative.draft.n_gpu_layers",), _number),
    "spec-draft-backend-sampling": (("speculative.draft.backend_sampling",), _switch),
    "spec-draft-sampling": (("speculative.draft.probabilistic",), lambda _, value: value == "probabilistic"),
    "spec-synth-len": (("speculative.synth_len",), _length),
    "backend-sampling": (("sampling.backend_sampling",), _switch),
    "threads": (("cpuparams.n_threads", "cpuparams_batch.n_threads"), _number),
}


def arguments(settings: Settings) -> list[str]:
    """For llama-server's command line."""
    words: list[str] = []
    for name, value in settings:
        if value in SWITCH:
            words.append(f"--{name}" if SWITCH[value] else f"--no-{name}")
        else:
            words += [f"--{name}", value]
    return words


def apply(package: Any, params: Any, settings: Iterable[Iterable[str]]) -> None:
    """Set them on the package's parameters. KeyError for an option that is not in FIELDS."""
    for name, value in settings:
        paths, convert = FIELDS[name]
        for path in paths:
            *places, last = path.split(".")
            setattr(functools.reduce(getattr, places, params), last, convert(package, value))


def known_to(params: Any) -> list[str]:
    """Options whose fields the package's parameters have."""
    return [name for name, (paths, _) in FIELDS.items() if all(_has(params, path) for path in paths)]


def _has(params: Any, path: str) -> bool:
    try:
        functools.reduce(getattr, path.split("."), params)
    except AttributeError:
        return False
    return True

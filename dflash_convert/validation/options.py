"""What the caller wants: the options of a validation and the thresholds it is judged by."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.jsonfile import parse_toml, text_of
from dflash_convert.named_file import read_named, undecodable
from dflash_convert.notes import Note
from dflash_convert.validation.prompts import SETS
from dflash_convert.validation.result import Thresholds

SWEEP = (4, 8, 15)  # the first is also the main value of a drafter that has no block
CONTEXT = 4096
LONG_CONTEXT = 8192
MIN_CONTEXT = 512
MAX_FILE = 1 << 20  # bytes of a file of thresholds, which are a dozen


@dataclass(frozen=True)
class Options:
    """A validation as asked for. Contexts in tokens, timeouts in seconds.

    ``n_max`` empty means the largest useful value, with a sweep of 4, 8 and 15 behind it; ``quick`` leaves
    everything but the main run away. ``long_context`` 0 skips the long run. ``rounds`` None means three, or one for
    ``quick``; ``keep_going`` runs the rest behind a main run that shows the pair to be broken. ``beside`` is another
    drafter, timed in the same rounds.
    """

    drafter: Path
    target: Path
    prompts: Path | None = None
    sets: tuple[str, ...] = SETS
    n_predict: int | None = None
    n_max: tuple[int, ...] = ()
    context: int = CONTEXT
    long_context: int = LONG_CONTEXT
    quick: bool = False
    rounds: int | None = None
    keep_going: bool = False
    sampled: bool = True
    thinking: str = "both"
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 64
    seed: int = 1
    thresholds: Thresholds = field(default_factory=Thresholds)
    llama_server: str | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    device: str | None = None
    draft_device: str | None = None
    extra_args: tuple[str, ...] = ()
    start_timeout: float = 600.0
    request_timeout: float = 1800.0
    reference: Path | None = None
    beside: Path | None = None
    hashes: bool = False
    force_pair: bool = False


def n_max_values(wanted: Sequence[int], cap: int | None, quick: bool) -> tuple[tuple[int, ...], list[Note]]:
    """The n-max values to run, the main one first, none above ``cap`` (None: unknown)."""
    notes = []
    if not wanted:
        values = [cap or SWEEP[0]]
        values += [] if quick else [n for n in SWEEP if cap is None or n < cap]
    else:
        values = [min(n, cap) if cap else n for n in wanted]
        above = [str(n) for n, used in zip(wanted, values, strict=True) if used < n]
        if above:
            notes.append(Note("info", f"n-max {', '.join(above)} is more than this drafter's block holds: {cap} used"))
    return tuple(dict.fromkeys(values)), notes


def parse_n_max(text: str) -> tuple[int, ...]:
    """``4,8,15`` as numbers; :class:`UsageError` for anything else."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 1 or max(values) > 256:
        raise UsageError(
            f"--n-max {text}: numbers from 1 to 256, separated by commas", tip="for example --n-max 4,8,15"
        )
    return values


def read_thresholds(path: Path) -> dict[str, float]:
    """Thresholds from a JSON or TOML file: any field of :class:`Thresholds` but ``recorded_at``."""
    read = read_named(path, MAX_FILE, "a file of thresholds")
    try:
        text = text_of(read)
        data = parse_toml(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not {'TOML' if path.suffix == '.toml' else 'JSON'}: {undecodable(error)}"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold an object of thresholds")
    known = {f.name for f in dataclasses.fields(Thresholds)} - {"recorded_at"}
    for name, value in data.items():
        if name not in known:
            raise ConfigError(f"{path}: there is no threshold {name!r}", tip=f"known: {', '.join(sorted(known))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ConfigError(f"{path}: {name} must be a number of at least 0, not {value!r}")
    return {name: float(value) for name, value in data.items()}


def thresholds(file: Mapping[str, float], given: Mapping[str, float | None]) -> Thresholds:
    """The defaults, changed by a file's values, changed by options that were given."""
    return Thresholds(**{**file, **{name: value for name, value in given.items() if value is not None}})  # type: ignore[arg-type]

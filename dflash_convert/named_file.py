"""A file that a person names, read whole; else one sentence about what is there and what was expected."""

from __future__ import annotations

from pathlib import Path

from dflash_convert.errors import ConfigError
from dflash_convert.jsonfile import defect, read_bounded
from dflash_convert.system import kind_of_place, tip_for


def read_named(path: Path, limit: int, what: str, tip: str | None = None) -> bytes:
    """A file of at most ``limit`` bytes; ConfigError for a larger one and for whatever else is at ``path``.

    ``what`` was expected there, with its article; ``tip`` says how to get one.
    """
    other = kind_of_place(path)
    if other is not None:
        raise ConfigError(f"{path}: {other}, not {what}", tip=tip_for(other, tip))
    try:
        path.stat()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", tip=tip) from None
    except OSError:
        pass  # told below
    try:
        return read_bounded(path, limit)
    except ConfigError as error:
        raise ConfigError(str(error), tip=tip) from None


def undecodable(error: ValueError | RecursionError) -> str:
    """Why a text that is TOML or JSON cannot be parsed, for people."""
    return defect(error) if isinstance(error, (RecursionError, UnicodeDecodeError)) else str(error)

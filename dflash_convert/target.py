"""The target: the model that a drafter was trained for, as far as it is at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_convert.checkpoint import read_config
from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.hparams import Config


@dataclass(frozen=True)
class Target:
    """What is known of a target; ``Target()`` when nothing is.

    ``config`` is its config.json, or what its GGUF says in those words.  ``directory`` holds its tokenizer and, if
    they are at hand, its weights; ``gguf`` is its file.  ``repository`` and ``revision`` are where it came from.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    gguf: Path | None = None
    repository: str | None = None
    revision: str | None = None

    @classmethod
    def read(
        cls, directory: Path, repository: str | None = None, revision: str | None = None, *, gguf: Path | None = None
    ) -> Target:
        """From a local directory; ConfigError for a config.json that is missing or damaged."""
        try:
            config = read_config(directory)
        except ConfigError as error:
            raise ConfigError(f"target: {error}", tip=error.tip) from None
        return cls(config, directory, gguf, repository, revision)

    @property
    def name(self) -> str:
        """Its repository's last part, else its directory's or file's name."""
        if self.repository:
            return self.repository.rsplit("/", 1)[-1]
        if self.directory:
            return self.directory.resolve().name
        return self.gguf.stem if self.gguf else "the target"

    @property
    def files(self) -> Path:
        """The directory of its config and tokenizer; UsageError when only its GGUF is known."""
        if self.directory is None:
            raise UsageError(f"{self.name}: the directory of the target is needed", tip="--target-model-dir TARGET")
        return self.directory

    @property
    def stated(self) -> Config:
        """config.json's fields by type."""
        return Config(self.config, "target config.json")

"""The target: the model that a drafter was trained for, as far as it is at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import llama
from dflash_convert.checkpoint import read_config
from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.shards import SHARD, first_shard
from dflash_convert.container.types import array_length
from dflash_convert.errors import ConfigError, FamilyError, UsageError
from dflash_convert.gguf_kind import OTHER, kind_of
from dflash_convert.hparams import Config

if TYPE_CHECKING:
    from dflash_convert.hub import Resolved

# the end of a GGUF's name that names its encoding
ENCODING = re.compile(r"[-._](?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|TQ\d_\d|MXFP4\w*|NVFP4\w*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """What is known of a target; ``Target()`` when nothing is.

    ``config`` is its config.json, or what its GGUF says in those words.  ``directory`` holds its tokenizer and, if
    they are at hand, its weights; ``header`` is that of its GGUF where vocabulary and sizes come from there instead.
    ``gguf`` is a file with its weights.  ``repository`` and ``revision`` are where it came from.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    gguf: Path | None = None
    repository: str | None = None
    revision: str | None = None
    header: Gguf | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(
        cls, path: Path, repository: str | None = None, revision: str | None = None, *, gguf: Path | None = None
    ) -> Target:
        """From a directory, or from a GGUF (any file of a split one).

        ConfigError for a config.json that is missing or damaged, ContainerError for a damaged GGUF, FamilyError for
        one that holds no model.  ``gguf`` is a file with the weights of a directory's target.
        """
        if not path.is_dir():
            path = first_shard(path)
            header = open_gguf(path)
            return cls(config_of(header), None, gguf or path, repository, revision, header)
        try:
            config = read_config(path)
        except ConfigError as error:
            raise ConfigError(f"target: {error}", tip=error.tip) from None
        return cls(config, path, gguf, repository, revision)

    @classmethod
    def of(cls, found: Resolved, *, gguf: Path | None = None) -> Target:
        """From what :func:`dflash_convert.hub.resolve_target` found."""
        repository = found.name if found.repo else None
        if found.header is None:
            return cls.read(found.path, repository, found.revision, gguf=gguf)
        return cls(config_of(found.header), None, gguf, repository, found.revision, found.header)

    @property
    def name(self) -> str:
        """Its repository's last part, else its directory's or file's name; of GGUFs without what names the format."""
        if self.header is not None:
            return plain_name(self.repository or self.header.path.name)
        if self.repository:
            return self.repository.rsplit("/", 1)[-1]
        if self.directory:
            return self.directory.resolve().name
        return self.gguf.stem if self.gguf else "the target"

    @property
    def named_after(self) -> str:
        """What :attr:`name` is the name of."""
        return "repository" if self.repository else "directory" if self.directory else "file"

    @property
    def shown(self) -> str:
        """For messages: as it was given."""
        place = self.directory or (self.header.path if self.header is not None else self.gguf)
        return self.repository or str(place or "the target")

    @property
    def known(self) -> bool:
        """Whether its vocabulary is at hand."""
        return self.directory is not None or self.header is not None

    @property
    def files(self) -> Path:
        """The directory of its config and tokenizer; UsageError when only its GGUF is known."""
        if self.directory is None:
            raise UsageError(f"{self.name}: the directory of the target is needed", tip="--target-model-dir TARGET")
        return self.directory

    @property
    def stated(self) -> Config:
        """config.json's fields by type."""
        if not self.known:
            return Config(self.config, "the target's config.json")
        inner = "config.json" if self.header is None else ""
        return Config(self.config, f"target {Path(self.shown) / inner}")


def plain_name(text: str) -> str:
    """The model's name in a path or repository id: ``owner/Qwen3-8B-GGUF``, ``Qwen3-8B-Q4_K_M-00001-of-00002.gguf``."""
    last = text.rsplit("/", 1)[-1]
    split = SHARD.match(last)
    last = split["stem"] if split else last.removesuffix(".gguf")
    found = re.sub(r"[-_.]gguf$", "", ENCODING.sub("", last), flags=re.IGNORECASE)
    return found or last


def config_of(gguf: Gguf) -> dict[str, Any]:
    """A target's GGUF in config.json's words, as far as a drafter's conversion asks for them.

    FamilyError, by name, for a GGUF that holds no model; a drafter is told by the rules of a pair.
    """
    _refuse_no_model(gguf)
    keys, arch = keys_of(gguf), gguf.architecture
    own = keys.under(arch)
    blocks, heads = own.integer("block_count"), own.first("attention.head_count")
    hidden, embedding = own.integer("embedding_length"), gguf.tensors.get("token_embd.weight")
    tokens = array_length(gguf.get("tokenizer.ggml.tokens"))
    config: dict[str, Any] = {
        "architectures": [llama.class_of(arch) or arch],
        "hidden_size": hidden,
        "vocab_size": embedding.shape[0] if embedding else tokens or None,
        "max_position_embeddings": own.integer("context_length"),
        # the last blocks may be the model's own prediction layers
        "num_hidden_layers": None if blocks is None else blocks - (own.integer("nextn_predict_layers") or 0),
        "eos_token_id": keys.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": keys.integer("tokenizer.ggml.padding_token_id"),
    }
    rope: dict[str, Any] = {"rope_theta": own.number("rope.freq_base")}
    turned, head = own.integer("rope.dimension_count"), own.integer("attention.key_length")
    head = hidden // heads if head is None and hidden and heads else head
    if turned and head and turned < head:
        rope["partial_rotary_factor"] = turned / head
    if f"{arch}.rope.dimension_sections" in keys:
        rope["mrope_section"] = own.integers("rope.dimension_sections")
    config["rope_parameters"] = {name: value for name, value in rope.items() if value is not None}
    return {name: value for name, value in config.items() if value is not None}


def _refuse_no_model(gguf: Gguf) -> None:
    kind = kind_of(gguf)
    if kind.group == OTHER:
        tip = f"give the GGUF of the target model itself; this one is for {kind.use}"
        raise FamilyError(f"{gguf.path} is {kind.text}, not a target model", tip=tip)
    if not gguf.tensors and gguf.get("split.count", 1) == 1:
        raise FamilyError(f"{gguf.path} holds no tensors: it is no target model", tip="download or convert it again")

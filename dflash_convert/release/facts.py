"""What a drafter GGUF says about itself, as a release needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert.container.keys import keys_of
from dflash_convert.container.reader import open_gguf
from dflash_convert.container.types import array_length
from dflash_convert.errors import ContainerError, InputError, UsageError
from dflash_convert.head.build import suffix
from dflash_convert.head.provenance import Provenance, provenance
from dflash_convert.llama import Variant, drafter, file_type_name, variants
from dflash_convert.tables import EMBEDDINGS
from dflash_convert.validation.pair import drafting_method

if TYPE_CHECKING:
    from dflash_convert.container.reader import Gguf

HUB = "https://huggingface.co/"
MODEL_WORDS = ("mmproj", "imatrix")


@dataclass(frozen=True)
class Origin:
    """Where a model came from: ``name`` for people, the Hub repository and revision when the file tells."""

    name: str | None = None
    repository: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class HeadFacts:
    """An output head that was given to the drafter: where its rows are from, ``vocabulary`` the tokens there are."""

    said: Provenance
    vocabulary: int
    own_embeddings: bool

    def json(self) -> dict[str, Any]:
        return {**asdict(self.said), "vocabulary": self.vocabulary, "own_embeddings": self.own_embeddings}


@dataclass(frozen=True)
class DrafterFacts:
    """A drafter GGUF: ``file_type`` is its encoding (``Q8_0``), ``tensor_types`` counts tensors by type,
    ``max_drafts`` the most tokens a block can draft, ``n_max`` how many to draft when nobody measured,
    ``target_files`` the SHA-256 of each tokenizer file of the target."""

    path: Path
    size: int
    variant: Variant
    family: str
    architecture: str
    file_type: str
    tensor_types: dict[str, int]
    block_size: int | None
    max_drafts: int | None
    n_max: int | None
    drafter: Origin
    target: Origin
    license: str | None
    license_name: str | None
    license_link: str | None
    config_sha256: str | None
    target_files: dict[str, str]
    tool_version: str | None
    head: HeadFacts | None

    @property
    def spec_type(self) -> str:
        return self.variant.spec_type


def read_facts(path: Path) -> DrafterFacts:
    """Read the header of a drafter GGUF.

    :class:`ContainerError` for a damaged file, :class:`FamilyError` when it is not a drafter of llama.cpp's
    dialect, :class:`InputError` for one shard of several (llama.cpp does not find split drafters).
    """
    gguf = open_gguf(path)
    variant = drafting_method(gguf, path)
    keys = keys_of(gguf)
    own = keys.under(gguf.architecture)
    if (keys.integer("split.count") or 1) > 1:
        raise InputError(f"{path} is split: llama.cpp does not find split drafters", tip="convert it to one file")
    if not gguf.tensors:
        raise ContainerError(f"{path} holds no tensors", tip="convert the checkpoint again")
    block, anchor = own.integer("block_size", low=1), own.boolean("sample_from_anchor")
    row = drafter(gguf.architecture)
    known = row is not None and block is not None  # else the runtime's own default is left to it
    number = keys.integer("general.file_type")
    return DrafterFacts(
        path=path,
        size=path.stat().st_size,
        variant=variant,
        family=_text(gguf, "dflash_convert.family") or variant.family,
        architecture=gguf.architecture,
        file_type=_file_type(path, number),
        tensor_types=dict(sorted(Counter(t.type.name for t in gguf.tensors.values()).items())),
        block_size=block,
        max_drafts=row.max_drafts(gguf.tensors, block, anchor) if row and known else None,
        n_max=row.n_max(gguf.tensors, block, anchor) if row and known else None,
        drafter=_origin(gguf, "drafter", _name(gguf)),
        target=_target(gguf),
        license=_text(gguf, "general.license"),
        license_name=_text(gguf, "general.license.name"),
        license_link=_text(gguf, "general.license.link"),
        config_sha256=_text(gguf, "dflash_convert.drafter.config_sha256"),
        target_files=_target_files(gguf),
        tool_version=_text(gguf, "dflash_convert.version"),
        head=_head(gguf),
    )


def _name(gguf: Gguf) -> str | None:
    """The drafter's, without what a reduced head adds to it."""
    name, said = _text(gguf, "general.name"), provenance(gguf)
    return name and name.removesuffix(suffix(said.rows) if said else "")


def _head(gguf: Gguf) -> HeadFacts | None:
    said = provenance(gguf)
    tokens = array_length(gguf.get("tokenizer.ggml.tokens"))
    return None if said is None else HeadFacts(said, tokens, EMBEDDINGS in gguf.tensors)


def same_release(files: Iterable[DrafterFacts]) -> DrafterFacts:
    """The first of ``files``; UsageError when they are not one drafter for one target in several types."""
    files = list(files)
    first = files[0]
    for other in files[1:]:
        for what in ("spec_type", "block_size", "config_sha256", "target_files", "drafter", "target"):
            a, b = getattr(first, what), getattr(other, what)
            if a != b:
                raise UsageError(
                    f"{first.path} and {other.path} differ in {what.replace('_', ' ')} ({a} and {b})",
                    tip="package the files of one drafter and one target",
                )
    return first


def found_by_llama_cpp(name: str, prefix: str) -> str | None:
    """Why llama.cpp would not find the drafter ``name`` (a path in the repository); None when it does.

    Rules of common/download.cpp and common/preset.cpp: the path must contain the lower-case prefix for
    ``-hf``, the file name must begin with it for ``--models-dir``, and no other sidecar's word may occur.
    """
    if not name.endswith(".gguf"):
        return "it does not end in .gguf"
    base = name.rsplit("/", 1)[-1]
    if not base.startswith(prefix):
        return f"it does not begin with {prefix}"
    for word in (*(variant.prefix for variant in variants()), *MODEL_WORDS):
        if word != prefix and word in base:
            return f"it contains {word}, the mark of another kind of file"
    return None


def _origin(gguf: Gguf, role: str, name: str | None) -> Origin:
    return Origin(
        name=name,
        repository=_text(gguf, f"dflash_convert.{role}.repository"),
        revision=_text(gguf, f"dflash_convert.{role}.revision"),
    )


def _target(gguf: Gguf) -> Origin:
    """The target from this tool's keys, else from the lineage that the drafter's own card gave the file."""
    origin = _origin(gguf, "target", _text(gguf, "dflash_convert.target.name"))
    if origin.name or origin.repository:
        return origin
    url = _text(gguf, "general.base_model.0.repo_url") or ""
    repository = url[len(HUB) :].strip("/") if url.startswith(HUB) else None
    return Origin(_text(gguf, "general.base_model.0.name"), repository or None)


def _target_files(gguf: Gguf) -> dict[str, str]:
    prefix = "dflash_convert.target.files."
    found = {name[len(prefix) :]: _text(gguf, name) for name in sorted(gguf.keys) if name.startswith(prefix)}
    return {name: digest for name, digest in found.items() if name.isprintable() and digest}


def _file_type(path: Path, number: int | None) -> str:
    name = file_type_name(number)
    if name is None:
        raise ContainerError(
            f"{path}: general.file_type is {'missing' if number is None else number}, so its encoding has no name",
            tip="quantize or convert it again",
        )
    return name


def _text(gguf: Gguf, key: str) -> str | None:
    """A string key that is not empty and holds one printable line; anything else counts as absent."""
    value = gguf.get(key)
    return value if isinstance(value, str) and value.strip() and value.isprintable() else None

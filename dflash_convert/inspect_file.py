"""What a path holds: a GGUF, a drafter's checkpoint or a target's directory, described as data."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import llama
from dflash_convert.checkpoint import open_checkpoint, read_config
from dflash_convert.container.keys import Keys
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.shards import shard_paths
from dflash_convert.container.types import KV, TensorType, array_length, tensor_nbytes
from dflash_convert.drafter import Description, Overrides, Taps
from dflash_convert.errors import ConfigError, TokenizerError, UsageError
from dflash_convert.families.detect import describe, looks_like_target, refuse_target
from dflash_convert.forks.dialects import BY_ARCHITECTURE, dialect_of
from dflash_convert.gguf_kind import DRAFTER, FORK, kind_of
from dflash_convert.hparams import architectures, classes
from dflash_convert.hub import existing
from dflash_convert.memory.models import drafter_from_config, model_from_keys, target_from_config
from dflash_convert.notes import Note
from dflash_convert.pairing.drafters import config_keys, drafter_gguf
from dflash_convert.pairing.targets import target_directory
from dflash_convert.pairing.tensors import check_tensors
from dflash_convert.pairing.view import SPECIAL
from dflash_convert.plan import TypeOptions, notes_of, plan_file, resolve_outtype
from dflash_convert.quantization import FLOATS, plan_quantize
from dflash_convert.target import Target
from dflash_convert.text import shorten
from dflash_convert.vocab.copied import vocabulary_of

if TYPE_CHECKING:
    from dflash_convert.memory.plan import Model
    from dflash_convert.vocab import Vocabulary

Row = tuple[tuple[int, ...], TensorType]
SHAPE_KEYS = {
    "layers": "block_count",
    "hidden": "embedding_length",
    "feed_forward": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "context_length": "context_length",
}
DRAFT_KEYS = {
    "rope_base": "rope.freq_base",
    "rope_scaling": "rope.scaling.type",
    "sliding_window": "attention.sliding_window",
    "causal": "attention.causal",
    "embedding_scale": "embedding_scale",
    "sample_from_anchor": "sample_from_anchor",
}
PROVENANCE = ("general.name", "general.author", "general.organization", "general.license", "general.repo_url")
PROVENANCE_PREFIXES = ("dflash_convert.", "general.source.", "general.base_model.")
TEXT_LIMIT = 200
ENCODINGS = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")  # the usual ones, the largest first


@dataclass(frozen=True)
class Inspection:
    """``kind``: drafter-gguf, gguf, drafter or target.  ``model`` and ``max_drafts`` feed the memory plan,
    which so holds at any draft length."""

    kind: str
    path: Path
    data: dict[str, Any]
    notes: tuple[Note, ...] = ()
    model: Model | None = field(default=None, repr=False)
    max_drafts: int = llama.DEFAULT_N_MAX

    @property
    def is_drafter(self) -> bool:
        return self.kind.startswith("drafter")

    def json(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": str(self.path), **self.data, "notes": [note.text for note in self.notes]}


def inspect(
    path: Path, target: Target | None = None, outtype: str = "auto", overrides: Overrides | None = None
) -> Inspection:
    """Describe ``path``; ``target`` adds the tokenizer of a drafter directory, ``outtype`` its encoding, ``overrides``
    what its config.json lacks.

    InputError for damaged files, UsageError for a path that does not exist and for overrides of anything else.
    """
    config = read_config(path) if path.is_dir() else {}
    if config and not looks_like_target(config):
        refuse_target(config, path.name)
        return _drafter(path, target, outtype, overrides)
    if overrides is not None and overrides != Overrides():
        raise UsageError(f"{path}: options that stand for config.json's fields are for a drafter's directory")
    if config:
        return _target(path, config)
    return _gguf(open_gguf(existing(path)))


# --- GGUF -------------------------------------------------------------------------------------------------------


def _gguf(gguf: Gguf) -> Inspection:
    kind = kind_of(gguf)
    fork, drafter = gguf.architecture in BY_ARCHITECTURE, kind.group in (DRAFTER, FORK)
    values = {name: kv.value for name, kv in gguf.keys.items()}
    rows = {info.name: (info.shape, info.type) for info in gguf.tensors.values()}
    data = {
        "what": kind.text,
        "family": _family(gguf) if drafter else None,
        "architecture": gguf.architecture or None,
        **_facts(gguf.architecture, values, drafter=drafter),
        "tokenizer": _tokenizer(values),
        "types": _types(rows.values()),
        "size": gguf.size,
        "provenance": _provenance(gguf.keys),
        "runtimes": _runtimes(gguf),
    }
    known = f"{gguf.architecture}.block_count" in gguf.keys
    model = model_from_keys(values, rows, source=gguf.path.name) if known and not fork else None
    most = _max_drafts(gguf.architecture, gguf.tensors, values)
    name = "drafter-gguf" if drafter else "gguf"
    return Inspection(name, gguf.path, _given(data), model=model, max_drafts=most)


def first_n_max(gguf: Gguf) -> int:
    """How many tokens a drafter's file drafts when nobody measured."""
    row = llama.drafter(gguf.architecture)
    if row is None:
        return llama.DEFAULT_N_MAX
    own = Keys("the file", {name: kv.value for name, kv in gguf.keys.items()}).under(row.name)
    return row.n_max(gguf.tensors, own.integer("block_size", low=1), own.boolean("sample_from_anchor"))


def _max_drafts(architecture: str, tensors: Container[str], values: Mapping[str, Any]) -> int:
    row = llama.drafter(architecture)
    if row is None:
        return llama.DEFAULT_N_MAX
    own = Keys("the file", values).under(row.name)
    most = row.max_drafts(tensors, own.integer("block_size", low=1), own.boolean("sample_from_anchor"))
    return llama.DEFAULT_N_MAX if most is None else most


def _family(gguf: Gguf) -> str:
    said = gguf.get("dflash_convert.family")
    if isinstance(said, str):
        return said
    row = llama.drafter(gguf.architecture)
    return "unknown" if row is None else row.variant(gguf.tensors).family


def _facts(arch: str, values: Mapping[str, Any], *, drafter: bool) -> dict[str, Any]:
    keys = Keys("the file", values)
    facts: dict[str, Any] = {"shapes": {n: v for n, k in SHAPE_KEYS.items() if (v := _plain(keys, f"{arch}.{k}"))}}
    if not drafter:
        layers = keys.integer(f"{arch}.block_count")
        nextn = keys.integer(f"{arch}.nextn_predict_layers") or 0
        return facts | ({"tappable": _tappable(arch, layers - nextn if layers else None)} if layers else {})
    facts |= {"block_size": keys.integer(f"{arch}.block_size"), "taps": _taps(keys, arch)}
    facts["mask_token_id"] = keys.integer("tokenizer.ggml.mask_token_id")
    facts |= {name: _plain(keys, f"{arch}.{key}") for name, key in DRAFT_KEYS.items()}
    pattern = keys.values.get(f"{arch}.attention.sliding_window_pattern")
    if pattern is not None and not isinstance(pattern, int):
        facts["sliding_layers"] = [index for index, flag in enumerate(pattern) if flag]
    return facts


def _taps(keys: Keys, arch: str) -> dict[str, list[int]] | None:
    """Both countings; a fork's own list counts outputs."""
    inputs, outputs = keys.integers(f"{arch}.target_layers"), keys.integers(f"{arch}.target_layer_ids")
    taps = Taps.from_inputs(inputs) if inputs else Taps.from_outputs(outputs or ())
    return {"outputs": list(taps.outputs), "inputs": list(taps.inputs)} if taps else None


def _plain(keys: Keys, name: str) -> Any:
    value = keys.values.get(name)
    return list(value) if value is not None and not isinstance(value, (str, int, float)) else value


def _tappable(arch: str | None, layers: int | None) -> dict[str, Any]:
    """Whether llama.cpp exports the layer inputs of this architecture, and the deepest layer input of a DFlash tap."""
    if arch not in llama.TAPPABLE or layers is None:
        return {"layer_inputs": arch in llama.TAPPABLE, "deepest_tap": None}
    return {"layer_inputs": True, "deepest_tap": layers if arch in llama.DFLASH.last_layer else layers - 1}


def _tokenizer(values: Mapping[str, Any]) -> dict[str, Any] | None:
    model = values.get("tokenizer.ggml.model")
    if model is None:
        return None
    template = values.get("tokenizer.chat_template")
    special = {kind: values.get(f"tokenizer.ggml.{name}") for kind, name in SPECIAL.items()}
    return {
        "model": model,
        "pre": values.get("tokenizer.ggml.pre"),
        "pre_source": "the file",
        "size": array_length(values.get("tokenizer.ggml.tokens")),
        "special": {kind: value for kind, value in special.items() if value is not None},
        "template_sha256": sha256(template.encode("utf-8", "surrogateescape")).hexdigest()
        if isinstance(template, str)
        else None,
    }


def _types(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for shape, kind in rows:
        entry = found.setdefault(kind.name, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += tensor_nbytes(kind, shape)
    return dict(sorted(found.items(), key=lambda item: -item[1]["bytes"]))


def _provenance(keys: Mapping[str, KV]) -> dict[str, Any]:
    chosen = (kv for name, kv in keys.items() if name in PROVENANCE or name.startswith(PROVENANCE_PREFIXES))
    return {kv.name: _excerpt(kv) for kv in chosen}


def _excerpt(kv: KV) -> Any:
    if kv.item is not None:
        return list(kv.value)
    return shorten(kv.value, TEXT_LIMIT) if isinstance(kv.value, str) else kv.value


def _runtimes(gguf: Gguf) -> list[str]:
    """Which programs load the file, by its dialect and its tensors."""
    dialect = dialect_of(gguf)
    if dialect is not None:
        cure = f"not llama.cpp: {dialect.obstacle}" if dialect.obstacle else "not llama.cpp: see dflash-convert migrate"
        return [f"{dialect.runtimes} ({cure})"]
    row = llama.drafter(gguf.architecture)
    if row is None:
        return [kind_of(gguf).use]
    refused = [f.name for f in check_tensors(drafter_gguf(gguf)) if f.severity == "error"]
    if refused:
        return [f"none known: llama.cpp {llama.BUILD} refuses it ({', '.join(refused)})"]
    return [f"llama.cpp from {llama.BUILD} (--spec-type {row.variant(gguf.tensors).spec_type})"]


# --- directories ------------------------------------------------------------------------------------------------


def _drafter(path: Path, target: Target | None, outtype: str, overrides: Overrides | None) -> Inspection:
    if not any(path.glob("*.safetensors*")) and "dflash_config" in (raw := read_config(path)):
        return _config_only(path, raw, outtype)
    checkpoint = open_checkpoint(path)
    description = describe(checkpoint, target or Target(), overrides)
    values = description.values
    data = {
        "family": description.family,
        "architecture": description.architecture,
        "architectures": architectures(checkpoint.config),
        **_facts(description.architecture, values, drafter=True),
        "vocab_size": description.vocab_size,
        "source_types": _source_types(description),
        "files": [file.name for file in checkpoint.files],
        "size": sum(file.stat().st_size for file in checkpoint.files),
        "runtimes": ["none yet: convert it"],
    }
    notes = notes_of(description)
    if target is not None:
        vocabulary = _vocabulary(target, description.vocab_size, notes, eagle3=description.eagle3_vocab)
        data["tokenizer"] = None if vocabulary is None else _vocabulary_json(vocabulary)
    model = _planned_model(description, values, outtype)
    return Inspection("drafter", path, _given(data), tuple(notes), model, description.max_drafts or llama.DEFAULT_N_MAX)


def _config_only(path: Path, raw: Mapping[str, Any], outtype: str) -> Inspection:
    """A plain DFlash drafter of which only config.json is there."""
    arch = llama.DFLASH.name
    values = {f"{arch}.context_length": raw.get("max_position_embeddings"), **config_keys(raw, path.name).values}
    given = {name: value for name, value in values.items() if value is not None}
    data = {
        "family": llama.DFLASH.variant(()).family,
        "architecture": arch,
        "architectures": architectures(raw),
        **_facts(arch, given, drafter=True),
        "files": sorted(file.name for file in path.iterdir() if file.is_file()),
    }
    note = Note("warning", "no weights here: everything is from config.json alone")
    model = drafter_from_config(raw, "BF16" if outtype.lower() == "auto" else outtype)
    return Inspection("drafter", path, _given(data), (note,), model, _max_drafts(arch, (), given))


def _source_types(description: Description) -> dict[str, int]:
    counts: dict[str, int] = {}
    for plan in description.tensors:
        kind = plan.scheme or (plan.sources[0].dtype if plan.sources else "derived")
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def _planned_model(description: Description, values: Mapping[str, Any], outtype: str) -> Model:
    """As if converted to ``outtype``."""
    kind = resolve_outtype(outtype, description.tensors)
    plan = plan_file(description, kind, [], [], [], TypeOptions())
    rows = {tensor.name: (tensor.shape, tensor_type) for tensor, tensor_type in plan.tensors}
    return model_from_keys(values, rows, vocab=description.vocab_size)


def encodings(path: Path, target: Target | None, overrides: Overrides | None = None) -> dict[str, Model]:
    """The drafter at ``path`` as the memory plan sees it, by the encodings that can be made of it; of a quantized GGUF
    its own alone."""
    if path.is_dir():
        own = [kind for kind in ENCODINGS if any(path.glob("*.safetensors*")) or kind in TensorType.__members__]
        models = {kind: inspect(path, target, kind, overrides).model for kind in own}
        return {kind: model for kind, model in models.items() if model is not None}
    gguf = open_gguf(path)
    values = {name: kv.value for name, kv in gguf.keys.items()}
    number = values.get("general.file_type")
    name = llama.file_type_name(number if isinstance(number, int) else None) or "as it is"
    found = {name: {info.name: (info.shape, info.type) for info in gguf.tensors.values()}}
    if all(info.type in FLOATS for info in gguf.tensors.values() if len(info.shape) > 1):
        for kind in ENCODINGS:
            plan = plan_quantize(gguf, kind, TypeOptions(), allow_requantize=True)
            found.setdefault(kind, {tensor.name: (tensor.shape, typed) for tensor, typed in plan.tensors})
    return {kind: model_from_keys(values, rows, source=path.name) for kind, rows in found.items()}


def _vocabulary(target: Target, size: int, notes: list[Note], *, eagle3: bool = False) -> Vocabulary | None:
    """None, and a note that says why, for a tokenizer that cannot be used."""
    try:
        return vocabulary_of(target, vocab_size=size, eagle3=eagle3)
    except TokenizerError as reason:
        notes.append(Note("warning", f"tokenizer: {reason}"))
        return None


def _vocabulary_json(vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "model": vocabulary.model,
        "pre": vocabulary.pre,
        "pre_source": vocabulary.pre_source,
        "size": vocabulary.size,
        "special": dict(vocabulary.special),
        "template_sha256": vocabulary.template_sha256,
        "files": dict(vocabulary.files),
    }


def _target(path: Path, config: Mapping[str, Any]) -> Inspection:
    notes: list[Note] = []
    target = Target(config, path)
    view = target_directory(target, tokens=False)
    vocabulary = None
    if view.rows is None:
        notes.append(Note("warning", "config.json states no vocab_size: the tokenizer was not read"))
    else:
        vocabulary = _vocabulary(target, view.rows, notes)
    names = classes(config)
    arch = llama.architecture_of(names)
    data = {
        "architectures": names,
        "architecture": arch,
        "shapes": _given({"layers": view.layers, "hidden": view.hidden, "vocab_size": view.rows}),
        "rope_base": list(view.rope_bases),
        "m_rope": view.mrope,
        "embedding_scale": view.embedding_scale,
        "tappable": _tappable(arch, view.layers) if arch else None,
        "tokenizer": None if vocabulary is None else _vocabulary_json(vocabulary),
        "files": sorted(file.name for file in path.iterdir() if file.is_file()),
    }
    if vocabulary is not None:
        notes += vocabulary.notes
    try:
        model = target_from_config(config)
    except ConfigError as error:  # of what nothing but a memory plan needs
        notes.append(Note("warning", f"memory is not known: {error}"))
        model = None
    return Inspection("target", path, _given(data), tuple(notes), model)


def _given(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def target_model(target: Target) -> Model:
    """The target's side of a memory plan: a GGUF with its weights, or a directory without.

    Of a split file whose other parts are not at hand, the weights stay unknown.
    """
    if target.header is None:
        return target_from_config(target.config)
    header = target.header
    values = {name: kv.value for name, kv in header.keys.items()}
    parts = shard_paths(target.gguf) if target.gguf else ()
    if (header.get("split.count") or 1) == 1:
        tensors = list(header.tensors.values())
    elif parts and all(part.is_file() for part in parts):
        tensors = [info for part in parts for info in open_gguf(part).tensors.values()]
    else:
        return model_from_keys(values, source=header.path.name)
    return model_from_keys(values, {info.name: (info.shape, info.type) for info in tensors}, source=header.path.name)

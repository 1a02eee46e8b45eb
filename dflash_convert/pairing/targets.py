"""A target as the checks see it, from a GGUF's header or from config.json and the tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dflash_convert import llama
from dflash_convert.container.keys import Keys, keys_of
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.shards import SHARD, shard_paths
from dflash_convert.errors import ConfigError, ContainerError
from dflash_convert.hparams import TEXT_CONFIGS, Config, classes
from dflash_convert.pairing.view import MAX_BASES, TargetView, Vocab, vocab_from_keys
from dflash_convert.pairing.weights import GgufTables, target_tables
from dflash_convert.target import Target
from dflash_convert.vocab import load_vocabulary


def target_view(target: Target, *, vocab: Vocab | None = None) -> TargetView:
    """``target`` from whatever tells of it; ``vocab`` is the vocabulary when it was read already."""
    if target.header is None:
        return target_directory(target, vocab=vocab)
    view = target_gguf(target.header)
    own = (target.name,) if target.repository else ()
    return replace(view, names=tuple(dict.fromkeys((*own, *view.names))))


def target_gguf(gguf: Gguf) -> TargetView:
    """Facts from a target's header; a first shard is enough."""
    keys, arch = keys_of(gguf), gguf.architecture
    blocks = keys.integer(f"{arch}.block_count")
    vocab = vocab_from_keys(gguf.path.name, gguf.keys)
    embedding = gguf.tensors.get("token_embd.weight")
    alone = SHARD.match(gguf.path.name) is None and llama.drafter(arch) is None  # of a drafter the rules say more
    if alone and gguf.tensors and embedding is None:
        raise ContainerError(
            f"{gguf.path}: token_embd.weight is missing, which every model has",
            tip="download or convert the target again",
        )
    bases = (keys.number(f"{arch}.rope.freq_base"), keys.number(f"{arch}.rope.freq_base_swa"))
    hidden = keys.integer(f"{arch}.embedding_length")
    return TargetView(
        path=gguf.path,
        is_gguf=True,
        architecture=arch,
        label=arch,
        hidden=hidden,
        layers=None if blocks is None else blocks - (keys.integer(f"{arch}.nextn_predict_layers") or 0),
        rows=embedding.shape[0] if embedding else vocab.size,
        vocab=vocab,
        rope_bases=tuple(base for base in bases if base is not None),
        mrope=f"{arch}.rope.dimension_sections" in keys,
        embedding_scale=_scale(arch, hidden, keys.number(f"{arch}.embedding_scale")),
        names=_names(keys),
        context=keys.integer(f"{arch}.context_length"),
        tables=_tables(gguf),
    )


def _tables(gguf: Gguf) -> GgufTables | None:
    """Of all parts of a target in several files; None when some are not at hand, or nothing but the header is."""
    if not gguf.whole:
        return None
    parts = shard_paths(gguf.path) if (gguf.get("split.count") or 1) != 1 else (gguf.path,)
    if len(parts) == 1:
        return GgufTables(gguf)
    return GgufTables(*map(open_gguf, parts)) if all(part.is_file() for part in parts) else None


def _scale(architecture: str, hidden: int | None, own: float | None) -> float | None:
    if own is None and hidden and llama.is_gemma(architecture):
        return float(hidden**0.5)
    return own


def _names(keys: Keys) -> tuple[str, ...]:
    found = [keys.text(f"general.{part}") for part in ("name", "basename", "finetune")]
    count = keys.integer("general.base_model.count") or 0
    found += [keys.text(f"general.base_model.{i}.name") for i in range(min(count, MAX_BASES))]
    return tuple(name for name in found if name)


def target_directory(target: Target, *, tokens: bool = True, vocab: Vocab | None = None) -> TargetView:
    """Facts from config.json and, with ``tokens``, the tokenizer's files and any weights.

    ``vocab`` is the vocabulary when it was read already.
    """
    path, raw = target.files, target.config
    config = Config(raw, f"{path}/config.json")
    names = classes(raw)
    known = llama.architecture_of(names)
    rope = config.table("rope_parameters") or config.table("rope_scaling") or {}
    hidden, rows = config.integer("hidden_size"), config.integer("vocab_size")
    if vocab is None:
        vocab = directory_vocab(path, rows) if tokens else Vocab()
    return TargetView(
        path=path,
        is_gguf=False,
        architecture=known,
        label=names[0] if names else "no architecture",
        hidden=hidden,
        layers=config.integer("num_hidden_layers"),
        rows=rows if rows is not None else vocab.size,
        vocab=vocab,
        rope_bases=_rope_bases(config, rope),
        mrope="mrope_section" in rope,
        embedding_scale=_scale(known or (names[0] if names else ""), hidden, None),
        names=tuple(dict.fromkeys(filter(None, (target.name, config.text("_name_or_path"))))),
        context=config.integer("max_position_embeddings"),
        tables=target_tables(path) if tokens else None,
    )


def _rope_bases(config: Config, rope: Mapping[str, Any]) -> tuple[float, ...]:
    tables = [
        rope,
        *(rope[kind] for kind in ("full_attention", "sliding_attention") if isinstance(rope.get(kind), dict)),
    ]
    bases = [Config(table, config.file).number("rope_theta") for table in tables]
    bases += [config.number("rope_theta"), config.number("rope_local_base_freq")]
    return tuple(dict.fromkeys(base for base in bases if base is not None))


def directory_vocab(path: Path, rows: int | None) -> Vocab:
    """The vocabulary as a drafter's conversion would write it, padded to the target's own rows."""
    if rows is None:
        places = ", ".join(TEXT_CONFIGS)
        raise ConfigError(f"target {path}/config.json: vocab_size is missing (read: the top level, {places})")
    vocabulary = load_vocabulary(path, vocab_size=rows)
    return vocab_from_keys(path.name, {kv.name: kv for kv in vocabulary.entries})

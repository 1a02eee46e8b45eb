"""Open drafter and target, GGUF or directory, headers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_convert import llama
from dflash_convert.container.keys import Keys
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.drafter import Taps
from dflash_convert.errors import CheckpointError, ConfigError, FamilyError, UsageError
from dflash_convert.hparams import Config, architectures
from dflash_convert.pairing.view import DrafterView, TargetView, Vocab, vocab_from_keys

MAX_D2T = 1 << 24  # entries; a reduced vocabulary is smaller than a vocabulary


def open_pair(drafter: Path, target: Path) -> tuple[DrafterView, TargetView]:
    """Both sides; InputError for a file that cannot be read at all, UsageError for a path that is neither."""
    from dflash_convert.checkpoint import read_config
    from dflash_convert.families.detect import refuse_target

    if drafter.is_dir():
        refuse_target(read_config(drafter), drafter.name, "dflash-convert check DRAFTER TARGET")
        target_view, config = _target(target)
        return drafter_directory(drafter, config, target if target.is_dir() else None), target_view
    return drafter_gguf(open_gguf(_file(drafter))), _target(target)[0]


def _target(path: Path) -> tuple[TargetView, Mapping[str, Any]]:
    from dflash_convert.checkpoint import read_config

    if path.is_dir():
        config = read_config(path)
        return target_directory(path, config), config
    gguf = open_gguf(_file(path))
    return target_gguf(gguf), config_of(gguf)


def _file(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    return path


# --- drafters ---------------------------------------------------------------------------------------------------


def drafter_gguf(gguf: Gguf) -> DrafterView:
    """The keys and tensor shapes of a drafter's GGUF."""
    name = gguf.path.name
    return DrafterView(
        path=gguf.path,
        is_gguf=True,
        architecture=gguf.architecture,
        keys=_keys(gguf),
        tensors={info.name: info.shape for info in gguf.tensors.values()},
        vocab=vocab_from_keys(name, gguf.keys),
        d2t_last=_largest_id(gguf),
    )


def _keys(gguf: Gguf) -> Keys:
    return Keys.of(gguf.path.name, gguf.keys.values())


def _largest_id(gguf: Gguf) -> int | None:
    info = gguf.tensors.get("d2t")
    if info is None or info.type.name != "I64" or info.nbytes > MAX_D2T * 8:
        return None
    return int(gguf.data("d2t").view("<i8").max())


def drafter_directory(path: Path, target: Mapping[str, Any], target_directory: Path | None = None) -> DrafterView:
    """A checkpoint as it would be converted; what stops the conversion becomes ``problem``."""
    from dflash_convert.checkpoint import open_checkpoint
    from dflash_convert.drafter import Description, Overrides
    from dflash_convert.families.detect import describe

    checkpoint = open_checkpoint(path)
    try:
        found: Description | None = describe(checkpoint, target, Overrides(target_directory=target_directory))
        problem = None
    except (CheckpointError, ConfigError, FamilyError) as reason:
        found, problem = None, str(reason)
    if found is None:
        return DrafterView(
            path,
            False,
            llama.DFLASH.name,
            config_keys(checkpoint.config, path.name),
            {},
            Vocab(),
            checkpoint.config,
            problem=problem,
        )
    keys = found.values
    keys |= {f"general.base_model.{i}.name": name for i, name in enumerate(_base_models(path))}
    tensors = {plan.name: plan.shape for plan in found.tensors}
    return DrafterView(path, False, found.architecture, Keys(path.name, keys), tensors, Vocab(), checkpoint.config)


def _base_models(path: Path) -> list[str]:
    """base_model of the model card, by the gguf library's own reading."""
    if not (path / "README.md").is_file():
        return []
    import gguf

    metadata = gguf.Metadata.load(None, path)
    return [str(entry["name"]) for entry in metadata.base_models or [] if entry.get("name")]


def config_keys(raw: Mapping[str, Any], name: str) -> Keys:
    """What config.json says by itself, for a checkpoint that no family accepts; no field is required."""
    config = Config(raw)
    outputs = config.integers("dflash_config.target_layer_ids", "target_layer_ids")
    inputs = config.integers("aux_hidden_state_layer_ids")
    taps = Taps.from_inputs(inputs or ()) if outputs is None else Taps.from_outputs(outputs)
    key = llama.DFLASH.key
    rope = config.table("rope_parameters") or config.table("rope_scaling") or {}
    found: dict[str, Any] = {
        key("embedding_length"): config.integer("hidden_size"),
        key("block_count"): config.integer("num_hidden_layers"),
        key("block_size"): config.integer("dflash_config.block_size", "block_size"),
        key("rope.freq_base"): Config(rope).number("rope_theta") or config.number("rope_theta"),
        key("target_layers"): list(taps.inputs) or None,
        key("embedding_scale"): config.number("dflash_config.input_embedding_scale", "input_embedding_scale"),
        "tokenizer.ggml.mask_token_id": config.integer("dflash_config.mask_token_id", "mask_token_id"),
    }
    return Keys(name, {each: value for each, value in found.items() if value is not None})


# --- targets ----------------------------------------------------------------------------------------------------


def target_gguf(gguf: Gguf) -> TargetView:
    """Facts from a target's header; a first shard is enough."""
    keys, arch = _keys(gguf), gguf.architecture
    blocks = keys.integer(f"{arch}.block_count")
    vocab = vocab_from_keys(gguf.path.name, gguf.keys)
    embedding = gguf.tensors.get("token_embd.weight")
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
    )


def _scale(architecture: str, hidden: int | None, own: float | None) -> float | None:
    if own is None and hidden and llama.is_gemma(architecture):
        return float(hidden**0.5)
    return own


def _names(keys: Keys) -> tuple[str, ...]:
    found = [keys.text(f"general.{part}") for part in ("name", "basename", "finetune")]
    count = keys.integer("general.base_model.count") or 0
    found += [keys.text(f"general.base_model.{i}.name") for i in range(min(count, 16))]
    return tuple(name for name in found if name)


def config_of(gguf: Gguf) -> dict[str, Any]:
    """The few fields of a target's config.json that a drafter's conversion asks for, from its GGUF."""
    view = target_gguf(gguf)
    arch = gguf.architecture
    class_name = next((name for name, known in llama.BY_CLASS.items() if known == arch), arch)
    config: dict[str, Any] = {"architectures": [class_name], "hidden_size": view.hidden, "vocab_size": view.rows}
    config["max_position_embeddings"] = gguf.get(f"{arch}.context_length")
    config["num_hidden_layers"] = view.layers
    if view.mrope:
        config["rope_parameters"] = {"mrope_section": list(gguf.get(f"{arch}.rope.dimension_sections"))}
    return {name: value for name, value in config.items() if value is not None}


def target_directory(path: Path, raw: Mapping[str, Any], *, tokens: bool = True) -> TargetView:
    """Facts from config.json and, with ``tokens``, the tokenizer's files; the weights are not needed."""
    config = Config(raw, f"{path.name}/config.json")
    classes = architectures(raw)
    known = next((llama.BY_CLASS[name] for name in classes if name in llama.BY_CLASS), None)
    rope = config.table("rope_parameters") or config.table("rope_scaling") or {}
    hidden, rows = config.integer("hidden_size"), config.integer("vocab_size")
    return TargetView(
        path=path,
        is_gguf=False,
        architecture=known,
        label=classes[0] if classes else "no architecture",
        hidden=hidden,
        layers=config.integer("num_hidden_layers"),
        rows=rows,
        vocab=_directory_vocab(path, rows) if tokens else Vocab(),
        rope_bases=_rope_bases(config, rope),
        mrope="mrope_section" in rope,
        embedding_scale=_scale(known or (classes[0] if classes else ""), hidden, None),
        names=(path.resolve().name,),
    )


def _rope_bases(config: Config, rope: Mapping[str, Any]) -> tuple[float, ...]:
    tables = [
        rope,
        *(rope[kind] for kind in ("full_attention", "sliding_attention") if isinstance(rope.get(kind), dict)),
    ]
    bases = [Config(table, config.file).number("rope_theta") for table in tables]
    bases += [config.number("rope_theta"), config.number("rope_local_base_freq")]
    return tuple(dict.fromkeys(base for base in bases if base is not None))


def _directory_vocab(path: Path, rows: int | None) -> Vocab:
    from dflash_convert.vocab import load_vocabulary

    vocabulary = load_vocabulary(path, vocab_size=rows or 0)
    return vocab_from_keys(path.name, {kv.name: kv for kv in vocabulary.entries})

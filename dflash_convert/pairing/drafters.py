"""A drafter as the checks see it, from a GGUF or from a checkpoint as it would be converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_convert import llama
from dflash_convert.checkpoint import Checkpoint, open_checkpoint
from dflash_convert.container.keys import Keys, keys_of
from dflash_convert.container.reader import Gguf
from dflash_convert.drafter import Description, Overrides, Taps
from dflash_convert.errors import InputError
from dflash_convert.families import eagle3, gemma4_assistant
from dflash_convert.families.detect import describe
from dflash_convert.families.spellings import proposed_target
from dflash_convert.gguf_library import gguf_library
from dflash_convert.hparams import Config, architectures
from dflash_convert.metadata import read_card
from dflash_convert.pairing.view import DrafterView, Vocab, vocab_from_keys
from dflash_convert.pairing.weights import GgufTables, PlannedTables, read_integers
from dflash_convert.target import Target
from dflash_convert.vocab import load_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dflash_convert.plan import FilePlan

MAX_D2T = 1 << 24  # entries; a reduced vocabulary is smaller than a vocabulary
DEPTH = "dflash_convert.target.layers"  # of the target that the drafter was trained with
MASK = "tokenizer.ggml.mask_token_id"
# architecture strings whose GGUF architecture is not dflash
OTHERS = dict.fromkeys(eagle3.ARCHITECTURES, llama.EAGLE3.name) | dict.fromkeys(
    gemma4_assistant.ARCHITECTURES, llama.GEMMA4_ASSISTANT.name
)


def drafter_gguf(gguf: Gguf) -> DrafterView:
    """Keys, tensor shapes and types of a drafter's GGUF; its weights are read where a rule asks for them."""
    keys = keys_of(gguf)
    vocab = vocab_from_keys(gguf.path.name, gguf.keys)
    embeddings = gguf.tensors.get("token_embd.weight")
    return DrafterView(
        path=gguf.path,
        is_gguf=True,
        architecture=gguf.architecture,
        keys=keys,
        tensors={info.name: info.shape for info in gguf.tensors.values()},
        vocab=vocab,
        types={info.name: info.type for info in gguf.tensors.values()},
        rows=vocab.size or (embeddings.shape[0] if embeddings else None),
        depth=keys.integer(DEPTH),
        d2t=_file_map(gguf),
        tables=GgufTables(gguf),
    )


def drafter_plan(name: str, plan: FilePlan) -> DrafterView:
    """A file that is planned, as it will be seen when it is written."""
    keys = Keys.of(name, plan.keys)
    tensors = {tensor.name: tensor for tensor, _ in plan.tensors}
    vocab = vocab_from_keys(name, {kv.name: kv for kv in plan.keys})
    return DrafterView(
        path=Path(name),
        is_gguf=True,
        architecture=keys.text("general.architecture") or "",
        keys=keys,
        tensors={tensor.name: tensor.shape for tensor in tensors.values()},
        vocab=vocab,
        types={tensor.name: kind for tensor, kind in plan.tensors},
        rows=vocab.size,
        depth=keys.integer(DEPTH),
        d2t=read_integers(tensors["d2t"]) if "d2t" in tensors else None,
        tables=PlannedTables(tensors),
    )


def _file_map(gguf: Gguf) -> NDArray[np.int64] | None:
    info = gguf.tensors.get("d2t")
    if info is None or info.type.name != "I64" or info.nbytes > MAX_D2T * 8:
        return None
    return gguf.data("d2t").reshape(-1).view("<i8")


def drafter_directory(path: Path, target: Target, overrides: Overrides | None = None) -> DrafterView:
    """A checkpoint as it would be converted; what stops the conversion becomes ``problem``."""
    checkpoint = open_checkpoint(path)
    try:
        description = describe(checkpoint, target, overrides)
    except InputError as reason:
        return replace(undescribed(checkpoint, str(reason)), remedy=reason.tip)
    return described(checkpoint, description)


def described(checkpoint: Checkpoint, description: Description) -> DrafterView:
    """What the conversion would write, before it is written."""
    plans = {plan.name: plan for plan in description.tensors}
    reduced = plans.get("d2t")
    read = reduced is not None and reduced.shape[-1] <= MAX_D2T
    return DrafterView(
        path=checkpoint.directory,
        is_gguf=False,
        architecture=description.architecture,
        keys=Keys(checkpoint.directory.name, description.values | _lineage(checkpoint)),
        tensors={plan.name: plan.shape for plan in description.tensors},
        vocab=_own_vocabulary(checkpoint.directory, description.vocab_size),
        config=checkpoint.config,
        rows=description.vocab_size,
        depth=stated_depth(checkpoint.config),
        d2t=read_integers(reduced) if read and reduced is not None else None,
        tables=PlannedTables(plans),
    )


def undescribed(checkpoint: Checkpoint, problem: str) -> DrafterView:
    """What config.json says by itself, for a checkpoint that no family accepts."""
    architecture = _architecture(checkpoint.config)
    keys = config_keys(checkpoint.config, checkpoint.directory.name, architecture)
    return DrafterView(
        path=checkpoint.directory,
        is_gguf=False,
        architecture=architecture,
        keys=Keys(keys.source, dict(keys.values) | _lineage(checkpoint)),
        tensors={},
        vocab=Vocab(),
        config=checkpoint.config,
        rows=Config(checkpoint.config, checkpoint.config_file).integer("vocab_size"),
        depth=stated_depth(checkpoint.config),
        problem=problem,
    )


def stated_depth(raw: Mapping[str, Any]) -> int | None:
    """Layers of the target that the drafter was trained with, where its config says so."""
    return Config(raw).integer("dflash_config.num_target_layers", "num_target_layers")


def _architecture(raw: Mapping[str, Any]) -> str:
    return next((OTHERS[name] for name in architectures(raw) if name in OTHERS), llama.DFLASH.name)


def _lineage(checkpoint: Checkpoint) -> dict[str, str]:
    """The target's names, as a converted file would carry them."""
    verifier = proposed_target(checkpoint.config)
    names = [*_base_models(checkpoint.directory), *([verifier] if verifier else [])]
    return {f"general.base_model.{i}.name": name for i, name in enumerate(dict.fromkeys(names))}


def _base_models(path: Path) -> list[str]:
    """base_model of the model card, by the gguf library's own reading."""
    if not (path / "README.md").is_file():
        return []
    gguf = gguf_library()
    metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), read_card(path)[0])
    return [str(entry["name"]) for entry in metadata.base_models or [] if entry.get("name")]


def _own_vocabulary(path: Path, size: int) -> Vocab:
    """That of tokenizer files beside the weights; most drafters have none, and one of an unknown kind says nothing."""
    try:
        vocabulary = load_vocabulary(path, vocab_size=size)
    except InputError as error:
        if isinstance(error.__cause__, OSError):  # the disk failed, which says nothing of the files
            raise
        return Vocab()
    return vocab_from_keys(path.name, {kv.name: kv for kv in vocabulary.entries})


def config_keys(raw: Mapping[str, Any], name: str, architecture: str = llama.DFLASH.name) -> Keys:
    """What config.json says by itself, for a checkpoint that no family accepts; no field is required."""
    config = Config(raw)
    outputs = config.integers("dflash_config.target_layer_ids", "target_layer_ids")
    inputs = config.integers("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
    taps = Taps.from_inputs(inputs or ()) if outputs is None else Taps.from_outputs(outputs)
    rope = config.table("rope_parameters") or config.table("rope_scaling") or {}
    found: dict[str, Any] = {
        "embedding_length": config.integer("hidden_size"),
        "target_hidden_size": config.integer("target_hidden_size"),
        "embedding_length_out": config.integer("backbone_hidden_size"),
        "context_length": config.integer("max_position_embeddings"),
        "block_count": config.integer("num_hidden_layers"),
        "block_size": config.integer("dflash_config.block_size", "block_size"),
        "rope.freq_base": Config(rope).number("rope_theta") or config.number("rope_theta"),
        "target_layers": list(taps.inputs) or None,
        "embedding_scale": config.number("dflash_config.input_embedding_scale", "input_embedding_scale"),
    }
    keys = {f"{architecture}.{key}": value for key, value in found.items()}
    keys[MASK] = config.integer("dflash_config.mask_token_id", "mask_token_id")
    return Keys(name, {key: value for key, value in keys.items() if value is not None})

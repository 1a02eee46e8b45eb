"""What config.json promises of the tensors, compared with them; a broken promise is an error that names both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_convert.checkpoint import Reader
from dflash_convert.drafter import Weight
from dflash_convert.errors import CheckpointError
from dflash_convert.families.backbone import Sizes
from dflash_convert.hparams import Config
from dflash_convert.notes import Note

TIP = "config.json and the weights are not of the same drafter, or the checkpoint is incomplete"
SAMPLED_ROWS = 64
CONFIDENCE = "confidence_head.proj.weight"
MARKOV = "markov_head.markov_w1.weight"
# field -> the tensor it speaks of; true and false are both promises
BOTH_WAYS: tuple[tuple[str, str], ...] = (
    ("has_lm_head", "lm_head.weight"),
    ("attention_sink_bias", "sink"),
    ("dflash_config.attention_sink_bias", "sink"),
    ("dflash_config.use_attention_sink", "sink"),
    ("enable_confidence_head", CONFIDENCE),
    ("dflash_config.enable_confidence_head", CONFIDENCE),
    ("use_confidence_head", CONFIDENCE),
    ("dflash_config.use_confidence_head", CONFIDENCE),
)
# field -> the tensor that true promises; of false, other places have the last word
IF_TRUE = (
    ("has_embed_tokens", "embed_tokens.weight"),
    ("attention_bias", "self_attn.q_proj.bias"),
    ("mlp_bias", "mlp.gate_proj.bias"),
)
# field -> the tensor that contradicts false
IF_FALSE = (("dflash_config.use_aux_hidden_state", "fc.weight"),)
EAGLE_IF_FALSE = (
    ("use_aux_hidden_state", "fc.weight"),
    ("use_input_layernorm_in_first_layer", "layers.0.input_layernorm.weight"),
    ("use_last_layernorm", "norm.weight"),
)


def check(config: Config, weights: Sequence[Weight], sizes: Sizes) -> list[Note]:
    """CheckpointError for the first promise that the tensors (canonical names) do not keep; notes on doubtful ones."""
    names = {weight.name.removeprefix("model.") for weight in weights}

    def has(part: str) -> bool:
        return part in names or any(name.endswith("." + part) or (part == "sink" and part in name) for name in names)

    for field, tensor in BOTH_WAYS:
        compare(config, field, has(tensor), tensor)
    for field, tensor in IF_TRUE:
        if config.boolean(field) is True:
            compare(config, field, has(tensor), tensor)
    for field, tensor in IF_FALSE:
        if config.boolean(field) is False:
            compare(config, field, tensor in names, tensor)
    _heads(config, weights, sizes)
    return _tied(config, weights)


def check_eagle(config: Config, weights: Sequence[Weight]) -> None:
    """The same for what an EAGLE-3 head promises in its own table."""
    names = {weight.name.removeprefix("model.") for weight in weights}
    for field, tensor in EAGLE_IF_FALSE:
        if eagle_flag(config, field) is False and tensor in names:
            raise broken(config, f"eagle_config.{field}", False, f"has {tensor}")


def compare(config: Config, field: str, present: bool, tensor: str) -> None:
    """CheckpointError when the boolean ``field`` is stated and is not ``present``."""
    stated = config.boolean(field)
    if stated is not None and stated is not present:
        raise broken(config, field, stated, f"has {tensor}" if present else f"has no {tensor}")


def broken(config: Config, field: str, stated: object, found: str) -> CheckpointError:
    shown = str(stated).lower() if isinstance(stated, bool) else stated
    return CheckpointError(f"{config.file}: {field} is {shown}, but the checkpoint {found}", tip=TIP)


def eagle_flag(config: Config, name: str) -> bool | None:
    """A flag of an EAGLE-3 head: in eagle_config, else at the top."""
    inner = Config(config.table("eagle_config") or {}, f"{config.file}: eagle_config").boolean(name)
    return config.boolean(name) if inner is None else inner


def _heads(config: Config, weights: Sequence[Weight], sizes: Sizes) -> None:
    shapes = {weight.name: weight.shape for weight in weights}
    rank, head = shapes.get(MARKOV, ())[-1:], shapes.get(CONFIDENCE)
    for field in ("markov_rank", "dflash_config.markov_rank"):
        stated = config.integer(field)
        if stated is not None and (stated,) != (rank or (0,)):
            raise broken(
                config, field, stated, f"has a Markov head of rank {rank[0]}" if rank else "has no Markov head"
            )
    for field in ("confidence_head_with_markov", "dflash_config.confidence_head_with_markov"):
        wide = config.boolean(field)
        if head is not None and rank and wide is not None and wide is not (head[-1] == sizes.hidden + rank[0]):
            raise broken(config, field, wide, f"has {CONFIDENCE} of {list(head)}")


def _tied(config: Config, weights: Sequence[Weight]) -> list[Note]:
    """tie_word_embeddings true beside a head of another content: exporters copy the field from the target's config."""
    found = {weight.name.removeprefix("model."): weight for weight in weights}
    table, head = found.get("embed_tokens.weight"), found.get("lm_head.weight")
    if config.boolean("tie_word_embeddings") is not True or table is None or head is None:
        return []
    if table.scheme or head.scheme or (table.shape == head.shape and _same(table, head)):
        return []
    text = "tie_word_embeddings is true, but lm_head.weight differs from embed_tokens.weight; lm_head.weight counts"
    return [Note("warning", text, True)]


def _same(table: Weight, head: Weight) -> bool:
    """Whether sampled rows are equal byte for byte; another dtype is another table."""
    a, b = table.sources[0], head.sources[0]
    if a.dtype != b.dtype or not table.shape or not table.shape[0]:
        return a.dtype == b.dtype
    width = a.nbytes // table.shape[0]
    rows = np.linspace(0, table.shape[0] - 1, SAMPLED_ROWS, dtype=np.int64)
    with Reader() as reader:
        for row in rows:
            pair = np.empty((2, width), dtype=np.uint8)
            reader.into(a, int(row) * width, pair[0].data)
            reader.into(b, int(row) * width, pair[1].data)
            if not np.array_equal(pair[0], pair[1]):
                return False
    return True

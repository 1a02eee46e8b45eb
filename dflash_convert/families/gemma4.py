"""What Gemma 4's drafters share: the sizes of full-attention layers, in both spellings of transformers."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_convert.errors import FamilyError
from dflash_convert.hparams import Config

HEAD_DIM, KV_HEADS = "global_head_dim", "num_global_key_value_heads"
INNER = {HEAD_DIM: "head_dim", KV_HEADS: "num_key_value_heads"}  # the names within per_layer_config
KNOWN = frozenset(INNER.values())


def full_size(config: Config, name: str, full: Sequence[bool]) -> int | None:
    """``name`` (HEAD_DIM or KV_HEADS) of the full-attention layers, which ``full`` marks; None when it is not stated.

    transformers 5.24 writes ``per_layer_config``, an object of layer number -> what differs there, instead of the two
    fields.  Layers that differ in anything else, or among each other, are a FamilyError.
    """
    stated = config.integer(name, low=1)
    table = config.table("per_layer_config")
    if stated is not None or not table:
        return stated
    values = {}
    for key, entry in table.items():
        where = f"{config.file}: per_layer_config.{key}"
        if not key.isdecimal() or not isinstance(entry, dict) or int(key) >= len(full):
            raise config.fail("per_layer_config", {key: entry}, "an object of layer numbers and objects")
        if not full[int(key)] or not set(entry) <= KNOWN:
            raise FamilyError(f"{where} changes more than the sizes of full-attention layers, which llama.cpp cannot")
        values[int(key)] = Config(entry, where).integer(INNER[name], low=1)
    if len(set(values.values())) > 1 or (values and len(values) < sum(full)):
        raise FamilyError(f"{config.file}: per_layer_config gives full-attention layers different {INNER[name]}")
    return next(iter(values.values()), None)

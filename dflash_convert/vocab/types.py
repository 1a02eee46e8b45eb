"""The target's vocabulary as the drafter's file carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from dflash_convert.container.types import KV, u32
from dflash_convert.notes import Note

MASK_KEY = "tokenizer.ggml.mask_token_id"

# llama.cpp's key for each kind of special token ("seperator" is spelled so there)
SPECIAL_KEY = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": MASK_KEY,
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
}


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """A target's tokenizer, ready to be written.

    ``size`` counts the padding too; ``special`` maps bos, eos, pad ... to ids; ``files`` maps the name of
    each file that was read to its SHA-256; ``entries`` are the ``tokenizer.*`` keys in the reference's order.
    """

    model: str
    pre: str | None
    pre_source: str
    size: int
    special: Mapping[str, int]
    template_sha256: str | None
    notes: tuple[Note, ...]
    entries: tuple[KV, ...] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict)

    def keys(self, mask_token_id: int | None) -> list[KV]:
        """The ``tokenizer.*`` keys; the drafter's mask id replaces the target's in place, else comes last."""
        if mask_token_id is None:
            return list(self.entries)
        mask = u32(MASK_KEY, mask_token_id)
        if any(entry.name == MASK_KEY for entry in self.entries):
            return [mask if entry.name == MASK_KEY else entry for entry in self.entries]
        return [*self.entries, mask]

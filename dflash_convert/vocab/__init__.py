"""The target's tokenizer files become ``tokenizer.*`` keys."""

from __future__ import annotations

from dflash_convert.vocab.load import load_vocabulary
from dflash_convert.vocab.types import Vocabulary

__all__ = ["Vocabulary", "load_vocabulary"]

"""Where a target's checkpoint keeps its embeddings and its output head."""

from __future__ import annotations

from collections.abc import Mapping

from dflash_convert.checkpoint import SourceTensor

EMBEDDINGS, HEAD = "token_embd.weight", "output.weight"  # GGUF's names
# plain, and inside the wrappers of multimodal models as transformers has named them
PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")


def find_table(tensors: Mapping[str, SourceTensor], name: str) -> SourceTensor | None:
    """``embed_tokens.weight`` or ``lm_head.weight`` under any of the usual prefixes."""
    return next((tensors[prefix + name] for prefix in PREFIXES if prefix + name in tensors), None)

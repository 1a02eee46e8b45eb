"""What a GGUF is: a drafter of llama.cpp or of a fork, a model, or another of the things that the format holds."""

from __future__ import annotations

from typing import NamedTuple

from dflash_convert import llama
from dflash_convert.container.reader import Gguf
from dflash_convert.forks.dialects import dialect_of

DRAFTER, FORK, MODEL, OTHER = "drafter", "fork", "model", "other"


class Kind(NamedTuple):
    """``group`` is one of the four above, ``text`` says it with an article, ``use`` is what takes such a file."""

    group: str
    text: str
    use: str


PROJECTOR = Kind(OTHER, "a multimodal projector (mmproj)", "llama.cpp beside its model: --mmproj FILE")
LORA = Kind(OTHER, "a LoRA adapter", "llama.cpp beside its model: --lora FILE")
ADAPTER = Kind(OTHER, "an adapter", "llama.cpp beside its model")
IMATRIX = Kind(OTHER, "an importance matrix", "quantizing: --imatrix FILE")
CONTROL = Kind(OTHER, "a control vector", "llama.cpp beside its model: --control-vector FILE")
VOCABULARY = Kind(OTHER, "a vocabulary without weights", "llama.cpp's tokenizer tests")
NOTHING = Kind(OTHER, "a GGUF that does not say what it is", "no program that is known here")


def kind_of(gguf: Gguf) -> Kind:
    """By architecture and general.type; dialects of forks by their keys."""
    architecture, stated = gguf.architecture, gguf.get("general.type")
    dialect = dialect_of(gguf)
    if dialect is not None:
        return Kind(FORK, f"a drafter in a fork's dialect ({dialect.name})", dialect.runtimes)
    row = llama.drafter(architecture)
    if row is not None:
        family = row.variant(gguf.tensors).family
        article = "an" if family.startswith(("EAGLE", "MTP")) else "a"
        return Kind(DRAFTER, f"{article} {family} drafter for llama.cpp", "llama.cpp")
    if architecture == "clip" or stated == "mmproj":
        return PROJECTOR
    if stated == "imatrix" or "imatrix.datasets" in gguf.keys:
        return IMATRIX
    if architecture == "controlvector":
        return CONTROL
    if stated == "adapter" or "adapter.type" in gguf.keys:
        return LORA if gguf.get("adapter.type") == "lora" else ADAPTER
    split = gguf.get("split.count", 1) != 1  # whose first file may hold the keys alone
    if stated == "vocab" or (not gguf.tensors and not split and "tokenizer.ggml.model" in gguf.keys):
        return VOCABULARY
    if not architecture:
        return NOTHING
    return Kind(MODEL, f"a model ({architecture})", "llama.cpp")

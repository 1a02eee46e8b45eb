"""Drafter GGUFs written for forks of llama.cpp: how they are recognised, and which programs load them.

Sources: the loaders and converters of buun-llama-cpp, beellama.cpp, lucebox, PrismML's llama.cpp and
ik_llama.cpp, as published.
"""

from __future__ import annotations

from typing import NamedTuple

from dflash_convert.container.reader import Gguf
from dflash_convert.errors import FamilyError
from dflash_convert.llama import DFLASH

NESTED = "keys one level deeper, taps that count layer outputs"


class Dialect(NamedTuple):
    """``runtimes`` load such a file; ``obstacle`` is why it cannot be rewritten, empty when it can."""

    name: str
    runtimes: str
    differs: str
    obstacle: str = ""


BY_ARCHITECTURE = {
    "dflash-draft": Dialect("dflash-draft", "buun-llama-cpp and beellama.cpp", NESTED),
    "dflash_draft": Dialect("dflash_draft", "older builds of buun-llama-cpp", NESTED),
    "qwen35-dflash-draft": Dialect("qwen35-dflash-draft", "lucebox", NESTED),
    "gemma4-dflash-draft": Dialect("gemma4-dflash-draft", "lucebox and buun-llama-cpp", NESTED),
    "dspark": Dialect("legacy dspark", "older builds of PrismML's llama.cpp", "doubled key prefix, no vocabulary"),
    "deepseek4-dspark": Dialect(
        "deepseek4-dspark",
        "a DeepSeek-V4 fork",
        "its own names for DeepSeek-V4's stages",
        "its tensor layout is not public; convert the checkpoint anew",
    ),
    "deepseek4_mtp_support": Dialect(
        "deepseek4_mtp_support",
        "ds4",
        "a side file of the target",
        "it holds parts of a target, not a drafter; convert the checkpoint anew",
    ),
}
EXPERTS = Dialect(
    "dflash with expert keys",
    "ik_llama.cpp",
    "llama.cpp's architecture string with a schema of expert keys",
    "llama.cpp's dflash has experts only in DeepSeek-V4 stages with hyper-connections",
)


def refuse_fork(gguf: Gguf) -> None:
    """FamilyError for a drafter in a fork's dialect, with the way out if there is one."""
    dialect = dialect_of(gguf)
    if dialect is not None:
        tip = dialect.obstacle or "rewrite it with: dflash-convert migrate OLD.gguf NEW.gguf"
        raise FamilyError(f"{gguf.path} is a drafter in a fork's dialect ({dialect.name}), not llama.cpp's", tip=tip)


def dialect_of(gguf: Gguf) -> Dialect | None:
    """The fork's dialect a drafter is written in; None for llama.cpp's own and for what is no drafter."""
    architecture = gguf.architecture
    if architecture in BY_ARCHITECTURE:
        return BY_ARCHITECTURE[architecture]
    if architecture == DFLASH.name and DFLASH.key("hyper_connection.count") not in gguf.keys:
        expert = any(name.startswith(DFLASH.key("expert_")) for name in gguf.keys)
        return EXPERTS if expert and gguf.get(DFLASH.key("expert_count")) != 0 else None
    return None

"""Who made it and for whom: file name, family and lineage.  Warnings, because siblings sometimes work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dflash_convert import llama
from dflash_convert.container.shards import SHARD
from dflash_convert.forks.dialects import BY_ARCHITECTURE
from dflash_convert.pairing.finding import Finding, error, warning
from dflash_convert.pairing.view import FORCED, DrafterView, TargetView

# words that name a variant of a model; a drafter learned the hidden states of one of them
VARIANTS = ("qat", "abliterated", "uncensored", "heretic", "distill", "merge", "reap", "thinking", "coder")
UNCONVERTIBLE = "unconvertible"


def check_kinds(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Is the drafter a drafter in llama.cpp's own dialect, and the target none?"""
    arch = drafter.architecture
    if arch in BY_ARCHITECTURE:
        cure = (
            f"written for {BY_ARCHITECTURE[arch].runtimes}; rewrite it with: dflash-convert migrate OLD.gguf NEW.gguf"
        )
        yield error("dialect", arch, llama.DFLASH.name, cure)
    elif llama.method(arch, drafter.tensors) is None:
        yield error("drafter-architecture", arch or None, target.label, "the drafter comes first, then its target")
    if llama.drafter(target.architecture) is not None or target.architecture in BY_ARCHITECTURE:
        yield error("target-is-drafter", arch, target.architecture, "give the target model, not another drafter")


def check_convertible(drafter: DrafterView) -> Iterator[Finding]:
    if drafter.problem is not None:
        cure = drafter.remedy or "dflash-convert DRAFTER --target-model-dir TARGET --dry-run"
        yield error(UNCONVERTIBLE, drafter.problem, None, cure)


def check_forced(drafter: DrafterView) -> Iterator[Finding]:
    """A file that was written although `check` refused its pair."""
    if FORCED in drafter.keys:
        reasons = [str(reason) for reason in drafter.keys.items(FORCED) or []]
        cure = "written with --force-pair: it is not expected to draft well; convert it for the target it was made for"
        yield warning("forced-pair", reasons, None, cure)


def check_file_name(drafter: DrafterView) -> Iterator[Finding]:
    """llama.cpp takes a drafter by a lower-case prefix of its name, and only as one file."""
    if not drafter.is_gguf or drafter.variant is None:
        return
    name, prefix = drafter.path.name, drafter.variant.prefix
    if SHARD.match(name):
        yield warning("file-name", name, None, "llama.cpp does not recognise a drafter in several files")
    if not name.startswith(prefix):
        yield warning("file-name", name, None, f"llama.cpp finds drafters by their name: rename it to {prefix}…")


def check_lineage(drafter: DrafterView, target: TargetView) -> Iterator[Finding]:
    """Compare the target's names with those the drafter was made for."""
    made_for = list(drafter.made_for)
    if not made_for or not target.names:
        return
    mine, its = [_plain(name) for name in made_for], [_plain(name) for name in target.names]
    if not any(_akin(a, b) for a in mine for b in its):
        cure = "the drafter names another target: measure the pair with dflash-convert validate"
        yield warning("lineage", made_for, list(target.names), cure)
    for word in VARIANTS:
        here, there = any(word in name for name in mine), any(word in name for name in its)
        if here != there:
            cure = f"only one of the two is a {word} variant; such pairs reach from 0 to 98 %: measure with validate"
            yield warning("lineage-variant", made_for, list(target.names), cure)
            return


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


def _akin(a: str, b: str) -> bool:
    """One name holds the other: 'Qwen3 8B' and 'qwen3-8b-instruct'."""
    return bool(a) and bool(b) and (a in b or b in a)

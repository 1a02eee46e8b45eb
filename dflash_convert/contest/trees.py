"""What trees of drafts would keep, beside the candidates that ran: an estimate from the drafter's own distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.contest.candidates import NOTHING, Candidate
from dflash_convert.contest.prepare import Contest
from dflash_convert.contest.trial import Book, Say, Work
from dflash_convert.errors import DflashError, FamilyError
from dflash_convert.forward.load import drafter_from_gguf, target_from_gguf
from dflash_convert.forward.tree import Lengths, Text, lengths
from dflash_convert.text import size

LARGEST = 2 << 30  # bytes of a target's file; a numpy forward of more takes hours
MOST_NODES = 1024
MARK = "estimate, not runnable in llama.cpp"


@dataclass(frozen=True)
class Estimate:
    """Mean lengths of one drafter's chain and trees in the numpy forward, or ``reason`` why there are none."""

    name: str
    path: Path
    found: Lengths | None = None
    reason: str = ""


def estimates(made: Contest, book: Book, work: Work, sizes: Sequence[int], say: Say) -> tuple[Estimate, ...]:
    """One for each drafter's file, on the answers that the target gave without a drafter."""
    paths: dict[Path, Candidate] = {}
    for each in made.candidates:
        if each.drafter is not None:
            paths.setdefault(each.drafter, each)
    texts = _texts(made, book, work) if paths else []
    found = []
    for path, each in paths.items():
        say(f"{path.name}: trees of {', '.join(map(str, sizes))} nodes, estimated")
        try:
            found.append(Estimate(path.stem, path, _lengths(made.engines.launch.target, each, texts, sizes)))
        except DflashError as error:
            found.append(Estimate(path.stem, path, reason=str(error)))
    return tuple(found)


def _texts(made: Contest, book: Book, work: Work) -> list[Text]:
    """Prompts and the target's answers as token ids; answers that an engine gives no ids of are left out."""
    with made.engines.start(NOTHING) as session:
        prompts = [r.prompt if isinstance(r.prompt, tuple) else session.tokenize(r.prompt) for r in work.requests]
    answers = [trace.tokens for trace in book.traces(0)]
    return [Text((*p, *a), len(p)) for p, a in zip(prompts, answers, strict=True) if p and len(a) > 1]


def _lengths(target: Path, candidate: Candidate, texts: Sequence[Text], sizes: Sequence[int]) -> Lengths:
    if target.stat().st_size > LARGEST:
        raise FamilyError(f"{target.name} is too large for the numpy forward ({size(LARGEST)} at most)")
    if candidate.drafter is None or not texts:
        raise FamilyError("the engine gives no token ids of its answers")
    source, main = drafter_from_gguf(candidate.drafter), target_from_gguf(target)
    return lengths(main, source.drafter(main), texts, sizes)


def lines(found: Sequence[Estimate]) -> list[str]:
    """Rows under a comparison's table, 80 columns at most."""
    rows = []
    for each in found:
        if each.found is None:
            rows += [f"  {each.name[:26]}: no tree estimated", f"    {each.reason}"]
            continue
        rows.append(f"  {each.name[:26]}: tokens a step, {MARK}")
        shown = [("the chain", each.found.chain), *((f"{n} nodes", m) for n, m in each.found.trees.items())]
        rows += [f"    {name:<12} {length:>6.2f}" for name, length in shown]
    return rows


def trees_json(found: Sequence[Estimate]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "file": str(each.path),
            "runnable": False,
            "chain_mean_length": None if each.found is None else round(each.found.chain, 4),
            "trees": [{"nodes": n, "mean_length": round(m, 4)} for n, m in each.found.trees.items()]
            if each.found
            else [],
            "reason": each.reason or None,
        }
        for each in found
    ]

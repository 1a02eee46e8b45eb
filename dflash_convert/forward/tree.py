"""What a tree of drafts would keep where a chain is drafted now: an estimate, for no runtime drafts trees from DFlash.

A block gives a distribution for every position at once. Taken as independent, a path's probability is the product of
its tokens'; the tree of n nodes that keeps most on average holds the n likeliest paths (a path is never likelier than
its beginning, so they hang together). How many of its tokens are kept is counted on the target's own greedy text.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash_convert.engine.trace import mean_length
from dflash_convert.errors import FamilyError
from dflash_convert.forward import ops
from dflash_convert.forward.drafter import Drafter
from dflash_convert.forward.fidelity import leading
from dflash_convert.forward.ops import F32
from dflash_convert.forward.target import Target

Path = tuple[int, ...]
AT_ONCE = 64  # blocks whose logits are held


@dataclass(frozen=True)
class Text:
    """The target's own greedy text behind a prompt: ``ids`` of both, of which ``first`` are the prompt's."""

    ids: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Lengths:
    """Tokens that a step of the target yields on average: with the chain of a whole block, and by nodes of a tree."""

    chain: float
    trees: dict[int, float]


def best_paths(log_probs: F32, nodes: int) -> set[Path]:
    """The ``nodes`` likeliest paths, tokens from the first position on; ``log_probs`` [positions, vocab]."""
    order = np.argsort(-log_probs, axis=1, kind="stable")[:, :nodes]
    ranked = np.take_along_axis(log_probs, order, 1)
    found: set[Path] = set()
    # a path by its ranks; each is reached once: from its elder sibling, or from its beginning
    heap: list[tuple[float, Path]] = [(-float(ranked[0, 0]), (0,))]
    while heap and len(found) < nodes:
        cost, ranks = heapq.heappop(heap)
        depth, last = len(ranks), ranks[-1]
        found.add(tuple(int(order[i, rank]) for i, rank in enumerate(ranks)))
        if last + 1 < ranked.shape[1]:
            more = float(ranked[depth - 1, last] - ranked[depth - 1, last + 1])
            heapq.heappush(heap, (cost + more, (*ranks[:-1], last + 1)))
        if depth < len(ranked):
            heapq.heappush(heap, (cost - float(ranked[depth, 0]), (*ranks, 0)))
    return found


def kept(paths: set[Path], truth: Sequence[int]) -> int:
    """How many tokens of ``truth`` the tree of ``paths`` has from its root on."""
    count = 0
    while count < len(truth) and tuple(truth[: count + 1]) in paths:
        count += 1
    return count


def lengths(target: Target, drafter: Drafter, texts: Sequence[Text], sizes: Sequence[int]) -> Lengths:
    """Every step of every text, with the chain and with a tree of each of ``sizes`` nodes.

    FamilyError for drafters whose positions depend on the token drafted before (DSpark, DFlash2).
    """
    if drafter.is_dspark or drafter.is_dflash2:
        raise FamilyError(f"the positions of a {drafter.variant.family} block are not independent of each other")
    chains: list[list[int]] = []
    trees: dict[int, list[list[int]]] = {size: [] for size in sizes}
    for text in texts:
        blocks = _log_probs(target, drafter, text)
        truths = [text.ids[at + 1 : at + 1 + len(rows)] for at, rows in blocks]
        chains.append(
            [leading([int(t) for t in rows.argmax(1)], truth) for (_, rows), truth in zip(blocks, truths, strict=True)]
        )
        for size, counts in trees.items():
            made = zip(blocks, truths, strict=True)
            counts.append([kept(best_paths(rows, size), truth) for (_, rows), truth in made])
    return Lengths(mean_step(chains), {size: mean_step(counts) for size, counts in trees.items()})


def _log_probs(target: Target, drafter: Drafter, text: Text) -> list[tuple[int, F32]]:
    """(place of the last committed token, log probabilities [drafts, vocab]) for every place behind the prompt."""
    features = target.forward(text.ids, target.new_cache(), drafter.hyper.target_layers)[1]
    cache = drafter.new_cache()
    drafter.inject(cache, features)
    places = range(text.first, len(text.ids) - 1)
    found = []
    for end in range(len(places), 0, -AT_ONCE):  # from behind: a block overwrites what only later ones look at
        anchors = {at: text.ids[at] for at in places[max(end - AT_ONCE, 0) : end]}
        for at, block in drafter.blocks(cache, anchors, drafter.max_drafts + drafter.first_slot).items():
            found.append((at, ops.log_softmax(block.logits[drafter.first_slot :])))
    return sorted(found, key=lambda each: each[0])


def mean_step(texts: Sequence[Sequence[int]]) -> float:
    """Tokens a step yields, from what a step at every place would keep: one begins behind what the last one left."""
    accepted = steps = 0
    for counts in texts:
        at = 0
        while at < len(counts):
            accepted += counts[at]
            steps += 1
            at += counts[at] + 1
    return mean_length(accepted, steps)

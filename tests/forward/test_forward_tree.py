"""Trees of drafts: the likeliest paths against every path there is, steps against a walk, the trained pair."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from dflash_convert.errors import FamilyError
from dflash_convert.forward import ops
from dflash_convert.forward.load import drafter_from_checkpoint, target_from_gguf
from dflash_convert.forward.tree import Text, best_paths, kept, lengths, mean_step
from dflash_convert.target import Target


@pytest.mark.parametrize(("depth", "vocab"), [(1, 5), (2, 4), (3, 4), (4, 3)])
def test_the_best_tree_is_that_of_all_trees(depth: int, vocab: int) -> None:
    """Its paths are the likeliest of all, counted one by one."""
    for seed in range(20):
        logits = np.random.default_rng(seed).normal(0, 2, (depth, vocab)).astype(np.float32)
        rows = ops.log_softmax(logits)
        every = [p for d in range(1, depth + 1) for p in itertools.product(range(vocab), repeat=d)]
        ranked = sorted(every, key=lambda p: -sum(float(rows[i, t]) for i, t in enumerate(p)))
        for nodes in (1, 2, 3, 7, len(every)):
            paths = best_paths(rows, nodes)
            assert paths == set(ranked[:nodes])
            assert all(p[:-1] in paths for p in paths if len(p) > 1), "a tree hangs together"
        assert len(best_paths(rows, len(every) + 5)) == len(every)


def test_no_tree_of_that_size_keeps_more_on_average() -> None:
    """Against every tree of four nodes over three positions of three tokens, by the drafter's own probabilities."""
    rows = ops.log_softmax(np.random.default_rng(3).normal(0, 1, (3, 3)).astype(np.float32))
    every = [p for d in (1, 2, 3) for p in itertools.product(range(3), repeat=d)]
    chance = {p: float(np.exp(sum(rows[i, t] for i, t in enumerate(p)))) for p in every}
    trees = [s for s in itertools.combinations(every, 4) if all(p[:-1] in s for p in s if len(p) > 1)]
    # a path of a tree adds one token whenever the truth begins with it
    best = max(sum(chance[p] for p in tree) for tree in trees)
    assert sum(chance[p] for p in best_paths(rows, 4)) == pytest.approx(best)


def test_what_is_kept_is_counted_from_the_root() -> None:
    paths = {(1,), (2,), (1, 5), (1, 5, 6)}
    assert [kept(paths, truth) for truth in ((1, 5, 6, 7), (1, 6), (3, 5), (2,), ())] == [3, 1, 0, 1, 0]


def test_a_step_begins_behind_what_the_last_one_left() -> None:
    assert mean_step([[2, 9, 9, 0, 1]]) == 1 + (2 + 0 + 1) / 3
    assert mean_step([[], [0]]) == 1
    assert mean_step([]) == 1


def test_the_trained_pair_keeps_more_with_more_nodes(fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    target = target_from_gguf(pair / "target-bf16.gguf")
    drafter = drafter_from_checkpoint(pair / "drafter", Target.read(pair / "target")).drafter(target)
    trace = json.loads((pair / "trace.json").read_text())
    texts = [Text((*p["prompt_ids"], *p["output_ids"]), len(p["prompt_ids"])) for p in trace["prompts"][:6]]
    found = lengths(target, drafter, texts, (7, 16, 64))
    steps = [n for p in trace["prompts"][:6] for n in p["accepted_per_step"]]
    assert found.chain == pytest.approx(1 + sum(steps) / len(steps), rel=0.03), "as the official implementation drafted"
    few, some, many = found.trees.values()
    assert found.chain * 0.95 < few < some < many <= 8


def test_positions_that_depend_on_each_other_are_refused(fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    target = target_from_gguf(pair / "target-bf16.gguf")
    drafter = drafter_from_checkpoint(pair / "drafter", Target.read(pair / "target")).drafter(target)
    drafter.is_dspark = True
    with pytest.raises(FamilyError, match="not independent"):
        lengths(target, drafter, [], (4,))

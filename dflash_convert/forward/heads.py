"""From a block's logits to drafted tokens: greedy, DSpark's Markov walk, DFlash2's selector lattice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_convert.forward import ops
from dflash_convert.forward.ops import F32

Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted ids in order; ``gaps[i]`` is the score distance of ``tokens[i]`` to the runner-up.

    ``confidences`` are DSpark's predicted acceptances, empty without a confidence head.
    """

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    confidences: tuple[float, ...] = ()

    def first(self, n: int) -> Draft:
        return Draft(self.tokens[:n], self.gaps[:n], self.confidences[:n])


def greedy(logits: F32) -> Draft:
    """The best token of every row of ``logits [n, vocab]``."""
    return Draft(tuple(int(t) for t in logits.argmax(axis=-1)), tuple(ops.top_gap(row) for row in logits))


def markov_walk(weights: Weights, hidden: F32, logits: F32, token: int, first: int) -> Draft:
    """Greedy with ``markov_w2 · markov_w1[previous token]`` added to each row, from block position ``first``."""
    w1, w2, d2t = weights["markov_w1.weight"], weights["markov_w2.weight"], weights.get("d2t")
    conf, bias_term = weights.get("conf_proj.weight"), weights.get("conf_proj.bias")
    tokens, gaps, confidences = [], [], []
    previous = token
    for position in range(first, len(logits)):
        embedded = w1[previous]
        bias = w2 @ embedded
        row = logits[position].copy()
        if d2t is None:
            row += bias
        else:  # rows outside the draft vocabulary are -inf and stay so
            row[d2t.astype(np.int64)] += bias
        if conf is not None:
            score = np.concatenate([hidden[position], embedded])[None] @ conf.reshape(-1, 1)
            if bias_term is not None:
                score = score + bias_term
            confidences.append(float(ops.sigmoid(score)[0, 0]))
        previous = int(row.argmax())
        tokens.append(previous)
        gaps.append(ops.top_gap(row))
    return Draft(tuple(tokens), tuple(gaps), tuple(confidences))


def selector_walk(weights: Weights, hidden: F32, logits: F32, token: int, top_k: int) -> Draft:
    """Greedy walk over the ``top_k`` candidates of block positions 1…: logit plus pairwise transition score.

    score(c | p, position) = logit[c] + Σ successor[c] · predecessor[p] · (selector_hidden · hidden[position])
    """
    before, after = weights["selector_predecessor.weight"], weights["selector_successor.weight"]
    gates = ops.linear(hidden, weights["selector_hidden.weight"])
    tokens, gaps = [], []
    previous = token
    for position in range(1, len(logits)):
        row = logits[position]
        candidates = np.argpartition(row, -top_k)[-top_k:]
        scores = row[candidates] + after[candidates] @ (before[previous] * gates[position])
        previous = int(candidates[scores.argmax()])
        tokens.append(previous)
        gaps.append(ops.top_gap(scores))
    return Draft(tuple(tokens), tuple(gaps))

"""How near a converted drafter stays to its source: the same contexts through both, compared block by block.

Everything a GGUF holds takes part, weights and keys: a wrong tap, rope base, mask id or window shows here as
well as a coarse encoding does.  Hidden states are compared by cosine, logits by their distance. Drafts are compared
only on the target's own text and with its own embeddings and head: on noise, or through a stand-in head, a drafter
is far from all it was trained on, and a file that loses nothing was seen to change 40 % of its drafts there.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dflash_convert.errors import UsageError
from dflash_convert.forward.drafter import Drafter
from dflash_convert.forward.heads import Draft
from dflash_convert.forward.hyper import DrafterHyper
from dflash_convert.forward.load import DrafterSource
from dflash_convert.forward.ops import F32
from dflash_convert.forward.target import Target, generate_greedy
from dflash_convert.notes import Note
from dflash_convert.watching import UNSEEN, Watch

RANDOM_HEAD_ROWS = 2048
EMBEDDING_SPREAD = 0.02  # usual standard deviation of trained embedding rows
BLOCKS = 12
LOGITS = 2048  # columns of the logits to compare, at least, where there are more


@dataclass(frozen=True)
class Context:
    """Committed tokens and what the target thinks of them.

    ``ids`` are the tokens, of which blocks start behind position ``first``. With ``target`` the features are its
    hidden states and ``ids`` its own greedy text, so that drafts can be right or wrong; without, each tap has
    its own reproducible noise.
    """

    ids: tuple[int, ...]
    first: int
    hidden: int
    target: Target | None = None
    seed: int = 0

    def features(self, taps: Sequence[int]) -> F32:
        """``[len(ids), taps · hidden]``."""
        if self.target is not None:
            return self.target.forward(self.ids, self.target.new_cache(), taps)[1]
        size = (len(self.ids), self.hidden)
        parts = [np.random.default_rng([self.seed, tap]).standard_normal(size, np.float32) for tap in taps]
        return np.concatenate(parts, axis=1)


def random_contexts(hyper: DrafterHyper, vocab: int, *, count: int = 4, length: int = 64) -> list[Context]:
    """Noise of fixed seeds; its size does not matter, since the fused context is normed."""
    contexts = []
    for seed in range(count):
        ids = np.random.default_rng(seed).integers(0, vocab, length)
        contexts.append(Context(tuple(int(i) for i in ids), length // 4, hyper.hidden, seed=seed))
    return contexts


def real_contexts(
    target: Target, prompts: Sequence[Sequence[int]], n_predict: int = 96, watch: Watch = UNSEEN
) -> list[Context]:
    """Each prompt continued greedily by ``target``."""
    contexts = []
    watch.begin(len(prompts), "the target's text")
    for prompt in prompts:
        text = generate_greedy(target, prompt, n_predict)
        contexts.append(Context((*prompt, *text), len(prompt), target.hyper.hidden, target))
        watch.update()
    return contexts


class RandomTable:
    """An embedding table of ``rows`` that exists only where it is looked at; each row depends on its index alone."""

    def __init__(self, rows: int, hidden: int) -> None:
        self.shape = (rows, hidden)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: Sequence[int]) -> F32:
        rows = [np.random.default_rng([7, i]).standard_normal(self.shape[1], np.float32) for i in ids]
        return np.stack(rows) * np.float32(EMBEDDING_SPREAD)


@dataclass(frozen=True, slots=True)
class Row:
    """One encoding against the source.

    ``cosine`` of the final hidden states (mean and worst position); ``logit_distance``: length of the difference of
    the logits over the length of the source's. With the target's weights also ``agreement``: share of equal
    drafts, and ``by_position`` in the block; ``acceptance``: share of drafts that match the target's greedy text;
    ``expected_loss``: the source's acceptance less this one's. Without them these four are None.
    """

    label: str
    cosine: float
    worst_cosine: float
    logit_distance: float
    agreement: float | None = None
    by_position: tuple[float, ...] | None = None
    acceptance: float | None = None
    expected_loss: float | None = None

    def json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "cosine": self.cosine,
            "worst_cosine": self.worst_cosine,
            "logit_distance": self.logit_distance,
            "agreement": self.agreement,
            "by_position": None if self.by_position is None else list(self.by_position),
            "acceptance": self.acceptance,
            "expected_loss": self.expected_loss,
        }


@dataclass(frozen=True, slots=True)
class Fidelity:
    """``rows`` in the order given; ``blocks`` compared in each; ``source_acceptance`` None without a target."""

    rows: tuple[Row, ...]
    blocks: int
    source_acceptance: float | None
    notes: tuple[Note, ...]


@dataclass(frozen=True)
class _Result:
    """One block: hidden states and logits (one column in a few) of the predicting positions, drafts, how many
    of how many the target would keep."""

    hidden: F32
    logits: F32
    draft: Draft
    accepted: int
    offered: int


def fidelity(
    source: DrafterSource,
    encodings: Mapping[str, DrafterSource],
    contexts: Sequence[Context],
    *,
    target: Target | None = None,
    blocks: int = BLOCKS,
    watch: Watch = UNSEEN,
) -> Fidelity:
    """Compare ``encodings`` (by label) with ``source`` on ``blocks`` positions of each context.

    ``target`` lends its embeddings and head to drafters that have none; without it fixed random tables stand in, a
    note says so, and drafts are not compared. UsageError without contexts, or for drafters whose blocks differ in size.
    ``watch`` counts contexts.
    """
    if not contexts:
        raise UsageError("fidelity needs at least one context")
    rows = _vocabulary([source, *encodings.values()])
    notes: list[Note] = []
    watch.begin(len(contexts) * (1 + len(encodings)), "numpy forward")
    watch.item("source")
    reference = _run(_drafter(source, target, rows, notes), contexts, blocks, watch)
    scored = target is not None and all(context.target is not None for context in contexts)
    accepted = _acceptance(reference) if scored else None
    table = []
    for label, encoding in encodings.items():
        if encoding.hyper.block_size != source.hyper.block_size:
            sizes = f"{encoding.hyper.block_size} and {source.hyper.block_size}"
            raise UsageError(f"{label}: block sizes {sizes} cannot be compared position by position")
        watch.item(label)
        results = _run(_drafter(encoding, target, rows, []), contexts, blocks, watch)
        table.append(_row(label, reference, results, accepted))
    return Fidelity(tuple(table), len(reference), accepted, tuple(notes))


def _vocabulary(sources: Sequence[DrafterSource]) -> int:
    """Rows a stand-in embedding table needs, so that every id in use has one."""
    top = [RANDOM_HEAD_ROWS, *(source.hyper.mask_token + 1 for source in sources)]
    top += [int(source.weights["d2t"].max()) + 1 for source in sources if "d2t" in source.weights]
    return max(top)


def _drafter(source: DrafterSource, target: Target | None, rows: int, notes: list[Note]) -> Drafter:
    if target is not None:
        return source.drafter(target)
    weights: Mapping[str, NDArray[Any]] = source.weights
    hidden = source.hyper.hidden
    embed: Any = None
    head = None
    if "token_embd.weight" not in weights:
        embed = RandomTable(rows, hidden)
        notes.append(Note("info", "random embeddings stand in for the target's, which are not available"))
        if "output.weight" not in weights:
            head = np.random.default_rng(11).standard_normal((RANDOM_HEAD_ROWS, hidden), np.float32)
            notes.append(Note("info", f"a random head of {RANDOM_HEAD_ROWS} rows stands in for the target's"))
            if "markov_w2.weight" in weights:
                short = {"markov_w2.weight": weights["markov_w2.weight"][:RANDOM_HEAD_ROWS]}
                weights = ChainMap(short, cast(MutableMapping[str, NDArray[Any]], weights))
    return Drafter(weights, source.hyper, embed=embed, head=head)


def _run(drafter: Drafter, contexts: Sequence[Context], blocks: int, watch: Watch) -> list[_Result]:
    size = drafter.max_drafts + drafter.first_slot
    results = []
    for context in contexts:
        cache = drafter.new_cache()
        drafter.inject(cache, context.features(drafter.hyper.target_layers))
        places = np.unique(np.linspace(context.first, len(context.ids) - 2, blocks).astype(int))
        anchors = {int(n): context.ids[n] for n in places}
        for n, block in sorted(drafter.blocks(cache, anchors, size).items()):
            draft = drafter.read(block, anchors[n])
            truth = context.ids[n + 1 : n + 1 + len(draft.tokens)]
            right = leading(draft.tokens, truth)
            step = max(block.logits.shape[1] // LOGITS, 1)
            logits = block.logits[drafter.first_slot :, ::step].copy()
            results.append(_Result(block.hidden[drafter.first_slot :], logits, draft, right, len(truth)))
        watch.update()
    return results


def leading(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _acceptance(results: Sequence[_Result]) -> float:
    return sum(r.accepted for r in results) / sum(r.offered for r in results)


def _row(label: str, reference: Sequence[_Result], results: Sequence[_Result], accepted: float | None) -> Row:
    cosines = np.concatenate([_cosine(a.hidden, b.hidden) for a, b in zip(reference, results, strict=True)])
    row = Row(label, float(cosines.mean()), float(cosines.min()), _logit_distance(reference, results))
    if accepted is None:
        return row
    pairs = [(a.draft.tokens, b.draft.tokens) for a, b in zip(reference, results, strict=True)]
    equal = np.array([[x == y for x, y in zip(a, b, strict=True)] for a, b in pairs])
    own = _acceptance(results)
    return replace(
        row,
        agreement=float(equal.mean()),
        by_position=tuple(float(x) for x in equal.mean(axis=0)),
        acceptance=own,
        expected_loss=accepted - own,
    )


def _logit_distance(reference: Sequence[_Result], results: Sequence[_Result]) -> float:
    """In float64; columns outside a draft vocabulary (-inf on both sides) are left out."""
    error = signal = 0.0
    for a, b in zip(reference, results, strict=True):
        known = np.isfinite(a.logits) & np.isfinite(b.logits)
        x, y = a.logits[known].astype(np.float64), b.logits[known].astype(np.float64)
        error += float(np.square(x - y).sum())
        signal += float(np.square(x).sum())
    return math.sqrt(error / signal) if signal else 0.0


def _cosine(a: F32, b: F32) -> NDArray[np.float64]:
    """Row by row, in float64; equal rows give exactly 1."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    dots = (x * y).sum(-1)
    out: NDArray[np.float64] = np.where(norms > 0, dots / np.where(norms > 0, norms, 1), (x == y).all(-1))
    return out

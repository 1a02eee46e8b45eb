"""Fidelity of real encodings of the trained drafter, and mutations that it must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import quant
from dflash_convert.errors import UsageError
from dflash_convert.forward.fidelity import Context, RandomTable, fidelity, random_contexts, real_contexts
from dflash_convert.forward.hyper import DrafterHyper
from dflash_convert.forward.load import DrafterSource, Weights
from dflash_convert.forward.target import Target

Arrays = dict[str, NDArray[Any]]


def wrap(arrays: Arrays, hyper: DrafterHyper) -> DrafterSource:
    return DrafterSource(Weights({name: lambda a=array: a for name, array in arrays.items()}), hyper)  # type: ignore[misc]


def encoded(source: DrafterSource, kind: str) -> DrafterSource:
    def through(array: NDArray[Any]) -> NDArray[Any]:
        if array.ndim < 2:
            return array
        return quant.dequantize(quant.quantize(array, kind), kind)

    return wrap({name: through(source.weights[name]) for name in source.weights}, source.hyper)


@pytest.fixture(scope="module")
def contexts(target: Target, trace: dict[str, Any]) -> list[Context]:
    return real_contexts(target, [p["prompt_ids"] for p in trace["prompts"][:4]], 64)


def test_encodings_in_order(target: Target, source: DrafterSource, contexts: list[Context]) -> None:
    names = ("F16", "Q8_0", "Q4_0")
    result = fidelity(source, {n: encoded(source, n) for n in names}, contexts, target=target)
    half, eight, four = result.rows
    assert result.blocks == 48
    assert result.notes == ()
    assert result.source_acceptance is not None
    assert 0.3 < result.source_acceptance < 0.7
    assert 1 > half.cosine > eight.cosine > four.cosine > 0.95
    assert 0 < half.logit_distance < eight.logit_distance < four.logit_distance < 0.5
    assert half.agreement is not None
    assert eight.agreement is not None
    assert eight.expected_loss is not None
    assert four.agreement is not None
    assert four.by_position is not None
    assert half.agreement >= 0.99
    assert 1 >= eight.agreement > 0.98 > four.agreement > 0.9
    assert abs(eight.expected_loss) <= 0.02
    assert four.acceptance is not None
    assert four.expected_loss == pytest.approx(result.source_acceptance - four.acceptance)
    assert len(four.by_position) == 7
    assert np.mean(four.by_position) == pytest.approx(four.agreement)


def test_a_copy_is_equal(target: Target, source: DrafterSource, contexts: list[Context]) -> None:
    row = fidelity(source, {"copy": source}, contexts, target=target).rows[0]
    assert (row.agreement, row.expected_loss, row.logit_distance) == (1.0, 0.0, 0.0)
    assert row.worst_cosine == pytest.approx(1.0, abs=1e-12)
    assert row.json()["label"] == "copy"


def test_without_a_target_no_drafts_are_compared(source: DrafterSource) -> None:
    contexts = random_contexts(source.hyper, 500)
    result = fidelity(source, {"Q8_0": encoded(source, "Q8_0"), "Q4_0": encoded(source, "Q4_0")}, contexts)
    eight, four = result.rows
    assert [note.level for note in result.notes] == ["info", "info"]
    assert "random head" in result.notes[1].text
    assert result.source_acceptance is None
    for row in (eight, four):
        assert (row.agreement, row.by_position, row.acceptance, row.expected_loss) == (None, None, None, None)
    assert eight.cosine > four.cosine > 0.9
    assert 0 < eight.logit_distance < four.logit_distance < 1


def test_fixed_seeds_give_the_same_figures(source: DrafterSource) -> None:
    four = {"Q4_0": encoded(source, "Q4_0")}
    first, second = (fidelity(source, four, random_contexts(source.hyper, 500, count=1)) for _ in range(2))
    assert first == second


def test_markov_heads_work_without_tables(source: DrafterSource) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: source.weights[name] for name in source.weights}
    arrays["markov_w1.weight"] = rng.standard_normal((4096, 8)).astype(np.float32)
    arrays["markov_w2.weight"] = rng.standard_normal((4096, 8)).astype(np.float32)
    spark = wrap(arrays, source.hyper)
    row = fidelity(spark, {"copy": spark}, random_contexts(source.hyper, 500, count=1)).rows[0]
    assert (row.cosine, row.logit_distance) == (pytest.approx(1.0), 0.0)


def permuted(arrays: Arrays) -> Arrays:
    """Interleaved instead of NeoX order in the q and k rows of every head."""
    out = dict(arrays)
    for name, array in arrays.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            out[name] = array.reshape(-1, 2, 32, 128).swapaxes(1, 2).reshape(array.shape)
    return out


def without_norms(arrays: Arrays) -> Arrays:
    return {n: np.ones_like(a) if n.endswith("norm.weight") else a for n, a in arrays.items()}


def swapped(arrays: Arrays) -> Arrays:
    return arrays | {
        "blk.0.ffn_gate.weight": arrays["blk.0.ffn_up.weight"],
        "blk.0.ffn_up.weight": arrays["blk.0.ffn_gate.weight"],
    }


MUTATIONS: dict[str, tuple[Callable[[DrafterHyper], DrafterHyper], Callable[[Arrays], Arrays]]] = {
    "taps+1": (lambda h: replace(h, target_layers=tuple(t + 1 for t in h.target_layers)), dict),
    "taps-1": (lambda h: replace(h, target_layers=tuple(t - 1 for t in h.target_layers)), dict),
    "rope base x10": (lambda h: replace(h, rope=replace(h.rope, base=h.rope.base * 10)), dict),
    "mask id": (lambda h: replace(h, mask_token=h.mask_token - 1), dict),
    "causal": (lambda h: replace(h, causal=True), dict),
    "embedding scale": (lambda h: replace(h, embedding_scale=11.3), dict),
    "window": (lambda h: replace(h, window=16, windowed=(True,) * h.layers), dict),
    "permuted q and k": (lambda h: h, permuted),
    "norms dropped": (lambda h: h, without_norms),
    "gate and up swapped": (lambda h: h, swapped),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("kind", ["real", "random"])
def test_mutations_show(name: str, kind: str, target: Target, source: DrafterSource, contexts: list[Context]) -> None:
    """Each moves the hidden states further than an 8-bit encoding does, with and without the target."""
    hyper, arrays = MUTATIONS[name]
    mutant = wrap(arrays({n: source.weights[n] for n in source.weights}), hyper(source.hyper))
    if kind == "real":
        row = fidelity(source, {name: mutant}, contexts[:2], target=target).rows[0]
    else:
        row = fidelity(source, {name: mutant}, random_contexts(source.hyper, 500, count=2)).rows[0]
    assert row.worst_cosine < 0.99


def test_nothing_to_compare_is_refused(source: DrafterSource) -> None:
    with pytest.raises(UsageError, match="at least one context"):
        fidelity(source, {}, [])
    other = DrafterSource(source.weights, replace(source.hyper, block_size=4))
    with pytest.raises(UsageError, match="block sizes 4 and 8"):
        fidelity(source, {"x": other}, random_contexts(source.hyper, 500, count=1))


def test_random_table_rows_depend_on_their_index_alone() -> None:
    table = RandomTable(1 << 20, 16)
    assert (table[[5, 900_000]][1] == table[[900_000]][0]).all()
    assert 0.01 < table[range(200)].std() < 0.03

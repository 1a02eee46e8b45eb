"""The memory plan turned round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_memory import DRAFTER, TARGET

from dflash_convert.errors import UsageError
from dflash_convert.memory.fit import fits, largest_context, needed, parse_size
from dflash_convert.memory.models import drafter_from_config, target_from_config
from dflash_convert.memory.plan import CacheLayer, Serving, plan_memory

MAIN, DRAFT = target_from_config(TARGET), drafter_from_config(DRAFTER, "q4_0")


@pytest.mark.parametrize(
    ("text", "size"), [("12GiB", 12 << 30), ("0.5 GiB", 1 << 29), ("800MiB", 800 << 20), ("12GB", 12 * 10**9)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--budget") == size


@pytest.mark.parametrize("text", ["12", "", "0GiB", "-1GiB", "12gib", "1KB", "nanGiB", "12GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        parse_size(text, "--budget")


@pytest.mark.parametrize("parallel", [None, 1, 3])
@pytest.mark.parametrize("drafter", [None, DRAFT])
@pytest.mark.parametrize("budget", [1 << 28, 1 << 30, 3 << 30])
def test_one_step_more_than_the_largest_context_is_too_much(parallel: int | None, drafter: object, budget: int) -> None:
    request = Serving(parallel=parallel, n_max=7)
    model = DRAFT if drafter else None
    most = largest_context(model, MAIN, request, budget)
    step = 256 * (parallel or 1)
    assert most % step == 0
    assert most == 0 or needed(model, MAIN, replace(request, ctx_size=most)) <= budget
    assert needed(model, MAIN, replace(request, ctx_size=most + step)) > budget


def test_a_large_budget_ends_at_the_trained_context() -> None:
    assert largest_context(None, MAIN, Serving(parallel=2), 1 << 50) == 2 * 262144


def test_the_whole_plan_is_what_is_needed() -> None:
    request = Serving(ctx_size=8192, parallel=1, n_max=7)
    plan = plan_memory(DRAFT, MAIN, request)
    assert plan.target is not None
    assert needed(DRAFT, MAIN, request) == plan.drafter.total + plan.target.total
    assert 0 < needed(None, MAIN, request) < plan.target.total


@pytest.mark.parametrize("parallel", [None, 2])
def test_every_cell_of_the_table_is_the_largest_that_fits(parallel: int | None) -> None:
    request, budget = Serving(parallel=parallel, n_max=7), 5 << 30
    drafters = {kind: drafter_from_config(DRAFTER, kind) for kind in ("BF16", "Q8_0", "Q4_0")}
    main = replace(MAIN, context_length=1 << 24)  # longer than what fits, so that memory decides
    rows = fits(drafters, main, request, budget)
    assert [each.drafter for each in rows] == [None, *drafters]
    step = 256 * (parallel or 1)
    for row in rows:
        model = drafters[row.drafter] if row.drafter else None
        for kind, most in row.contexts.items():
            asked = replace(request, cache_k=kind, cache_v=kind)
            assert most is not None
            assert most == 0 or needed(model, main, replace(asked, ctx_size=most)) <= budget
            assert needed(model, main, replace(asked, ctx_size=most + step)) > budget
    for kind in rows[0].contexts:
        alone, *with_drafter = (row.contexts[kind] or 0 for row in rows)
        assert alone >= max(with_drafter)
        assert with_drafter == sorted(with_drafter), "a smaller drafter leaves more room"
    assert (rows[0].contexts["q4_0"] or 0) > (rows[0].contexts["f16"] or 0)


def test_a_cache_whose_rows_do_not_fill_blocks_has_no_context() -> None:
    odd = replace(MAIN, layers=(CacheLayer(48, 48),), window=0)
    (row,) = fits({}, odd, Serving(), 1 << 32)
    assert row.contexts["q8_0"] is None
    assert row.contexts["f16"]


def test_a_request_that_cannot_be_is_told_and_no_empty_table() -> None:
    with pytest.raises(UsageError, match="0 parallel slots"):
        fits({}, MAIN, Serving(parallel=0), 1 << 32)

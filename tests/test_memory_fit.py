"""The memory plan turned round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_memory import DRAFTER, TARGET

from dflash_convert.errors import UsageError
from dflash_convert.memory.fit import largest_context, needed, parse_size
from dflash_convert.memory.models import drafter_from_config, target_from_config
from dflash_convert.memory.plan import Request, plan_memory

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
    request = Request(parallel=parallel, n_max=7)
    model = DRAFT if drafter else None
    most = largest_context(model, MAIN, request, budget)
    step = 256 * (parallel or 1)
    assert most % step == 0
    assert most == 0 or needed(model, MAIN, replace(request, ctx_size=most)) <= budget
    assert needed(model, MAIN, replace(request, ctx_size=most + step)) > budget


def test_a_large_budget_ends_at_the_trained_context() -> None:
    assert largest_context(None, MAIN, Request(parallel=2), 1 << 50) == 2 * 262144


def test_the_whole_plan_is_what_is_needed() -> None:
    request = Request(ctx_size=8192, parallel=1, n_max=7)
    plan = plan_memory(DRAFT, MAIN, request)
    assert plan.target is not None
    assert needed(DRAFT, MAIN, request) == plan.drafter.total + plan.target.total
    assert 0 < needed(None, MAIN, request) < plan.target.total

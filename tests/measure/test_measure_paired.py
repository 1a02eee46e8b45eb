"""Pairs of sides over the same prompts."""

from __future__ import annotations

import random

import pytest

from dflash_convert.measure.paired import paired
from dflash_convert.measure.speed import Pass, Sample


def passes(ms: list[float], noise: float = 0.0, seed: int = 1) -> list[Pass]:
    luck = random.Random(seed)
    return [Pass(i, tuple(Sample(100, each * luck.gauss(1, noise)) for each in ms)) for i in range(3)]


def test_a_gain_on_every_prompt_holds_for_other_prompts() -> None:
    found = paired(passes([10, 20, 30, 40, 50]), passes([5, 10, 15, 20, 25]))
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.faster


def test_a_gain_on_one_prompt_does_not() -> None:
    """The sum says 1.3 times as fast, five of six prompts say slower."""
    found = paired(passes([100.0] * 5 + [500]), passes([105.0] * 5 + [200]))
    assert found is not None
    assert found.ratio > 1.3
    assert not found.faster
    assert found.low < 1 < found.high


def test_the_same_passes_give_the_same_interval() -> None:
    one, other = passes([10, 20, 30, 40], 0.1), passes([11, 19, 33, 38], 0.1, seed=2)
    assert paired(one, other) == paired(one, other)
    turned = paired(other, one)
    found = paired(one, other)
    assert found is not None
    assert turned is not None
    assert turned.ratio == pytest.approx(1 / found.ratio)


def test_too_few_prompts_and_no_times_say_nothing() -> None:
    assert paired(passes([1, 2, 3]), passes([1, 2, 3])) is None
    assert paired(passes([1, 2, 3, 4]), passes([1, 2, 3, 0])) is None

"""The statistics of repeated times, and the order of the runs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from dflash_convert.measure.schedule import Stint, schedule
from dflash_convert.measure.speed import QUANTILES, Pass, Sample, compare


def passes(*rounds: list[float], first: int = 0) -> list[Pass]:
    """One pass a round; each number is the milliseconds of a request of 100 tokens."""
    return [Pass(first + 2 * i, tuple(Sample(100, ms) for ms in row)) for i, row in enumerate(rounds)]


def steady(ms: float, prompts: int = 8, rounds: int = 3, seed: int = 0, noise: float = 0.01) -> list[Pass]:
    draw = random.Random(seed)
    return passes(*[[ms * math.exp(draw.gauss(0, noise)) for _ in range(prompts)] for _ in range(rounds)], first=seed)


def changed(done: list[Pass], change: Callable[[int, int, float], float]) -> list[Pass]:
    """``change(round, prompt, ms)`` of every request."""
    return [
        Pass(p.at, tuple(Sample(s.tokens, change(r, i, s.ms)) for i, s in enumerate(p.samples)))
        for r, p in enumerate(done)
    ]


def test_every_side_once_a_round_the_order_turned() -> None:
    assert schedule(2, 3) == (Stint(0, (0,)), Stint(1, (0, 1)), Stint(0, (1, 2)), Stint(1, (2,)))
    assert [stint.side for stint in schedule(3, 2)] == [0, 1, 2, 1, 0]
    for sides, rounds in ((1, 4), (2, 5), (4, 3)):
        ran = sorted((number, s.side) for s in schedule(sides, rounds) for number in s.rounds)
        assert ran == [(number, side) for number in range(rounds) for side in range(sides)]


@pytest.mark.parametrize("freedom", QUANTILES)
def test_quantiles_are_students(freedom: int) -> None:
    """The two tails beyond them hold a thousandth of the distribution, by integrating its density."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    steps, top = 20_000, QUANTILES[freedom]
    inside = sum((1 + (top * (i + 0.5) / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps))
    assert 1 - 2 * scale * inside * top / steps == pytest.approx(0.001, rel=2e-3)


def test_a_clear_difference_is_claimed_with_its_spread() -> None:
    found = compare(steady(200, seed=0), steady(100, seed=1), 4.0)
    assert found.gain == "faster"
    assert found.speedup == pytest.approx(2, rel=0.02)
    assert found.low is not None
    assert found.high is not None
    assert 1.7 < found.low < 2 < found.high < 2.3
    assert compare(steady(100, seed=0), steady(200, seed=1), 4.0).gain == "slower"
    assert compare(steady(100, seed=0), steady(101, seed=1), 4.0).gain == "no gain"


def test_figures_that_are_the_same_every_time_are_not_exact() -> None:
    found = compare(passes([100.0], [100.0], [100.0]), passes([99.0], [99.0], [99.0]), 4.0)
    assert found.gain == "no gain"  # 1 % is less than two starts of one engine differ by


def test_less_than_three_rounds_claim_nothing() -> None:
    found = compare(steady(200, rounds=2), steady(100, rounds=2, seed=1), 4.0)
    assert (found.gain, found.speedup, found.low) == ("not measured", None, None)


def test_more_than_the_mean_length_is_no_figure_and_no_end_of_a_spread() -> None:
    found = compare(steady(300), steady(100, seed=1), 2.5)
    assert (found.gain, found.speedup, found.high) == ("disturbed", None, None)
    near = compare(steady(200), steady(100, seed=1), 2.05)
    assert (near.gain, near.high) == ("faster", 2.05)


def test_one_round_that_is_far_off_takes_the_claim_away() -> None:
    base = changed(steady(100), lambda r, _, ms: ms * (8 if r == 1 else 1))
    found = compare(base, steady(80, seed=1), 4.0)
    assert (found.gain, found.stalls) == ("disturbed", ())


def test_a_stall_is_found_and_counted_at_the_usual_time() -> None:
    base = changed(steady(100), lambda r, i, ms: ms * (40 if (r, i) == (0, 3) else 1))
    found = compare(base, steady(98, seed=1), 4.0)
    assert [(s.side, s.round, s.prompt) for s in found.stalls] == [(0, 0, 3)]
    assert found.stalls[0].factor == pytest.approx(40, rel=0.1)
    assert found.gain == "no gain"
    assert found.speedup == pytest.approx(1.02, abs=0.02)


def test_no_claim_rests_on_one_prompt() -> None:
    base = changed(steady(100), lambda _, i, ms: ms * (20 if i == 2 else 1))  # in every round
    assert compare(base, steady(100, seed=1), 4.0).gain == "disturbed"


def test_rounds_that_agree_by_luck_do_not_narrow_the_spread() -> None:
    """Requests that scatter by 30 % cannot add up to rounds that are equal to the bit."""
    rows = [[70.0, 130.0, 100.0, 100.0], [130.0, 70.0, 100.0, 100.0], [100.0, 100.0, 70.0, 130.0]]
    found = compare(passes(*rows), passes(*[[ms / 1.5 for ms in row] for row in rows], first=1), 4.0)
    assert found.gain != "faster"


def test_drift_is_measured_from_the_first_runs_to_the_last() -> None:
    def slowing(side: int) -> list[Pass]:
        return changed(steady(100, seed=side), lambda r, _, ms: ms * (1 + 0.2 * (2 * r + side)))

    found = compare(slowing(0), slowing(1), 4.0)
    assert found.drift == pytest.approx(1.1 / 1.9 - 1, abs=0.02)
    assert compare(steady(100), steady(50, seed=1), 4.0).drift is None


def test_an_engine_without_times_measures_nothing() -> None:
    assert compare(passes([0.0], [1.0], [1.0]), passes([1.0], [1.0], [1.0]), 4.0).gain == "not measured"


def test_both_sides_need_the_same_rounds() -> None:
    with pytest.raises(ValueError, match="same number of rounds"):
        compare(steady(1), steady(1, rounds=2))

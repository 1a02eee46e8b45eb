"""Prediction of speeds from one curve and a few step times."""

from __future__ import annotations

import pytest

from dflash_convert.contest import depth

CURVE = tuple(0.8**i for i in range(1, 16))


def test_a_curve_cut_short_is_the_length() -> None:
    assert depth.length_at(CURVE, 0) == 1
    assert depth.length_at(CURVE, 2) == pytest.approx(1 + 0.8 + 0.64)
    assert depth.length_at(CURVE, 99) == pytest.approx(1 + sum(CURVE))


def test_costs_lie_on_lines_between_the_measured() -> None:
    costs = {1: 6.0, 3: 8.0, 15: 32.0}
    assert depth.step_at(costs, 1) == 6
    assert depth.step_at(costs, 2) == 7
    assert depth.step_at(costs, 9) == 20
    assert depth.step_at(costs, 16) == 34
    assert depth.step_at({7: 5.0}, 1) == 5


def test_the_published_line_has_its_optimum_where_it_was_found() -> None:
    """4.47 + 1.156 (n + 1) ms a step with a curve that fades: a depth in the middle, not the whole block."""
    costs = {n: 4.47 + 1.156 * (n + 1) for n in (1, 3, 7, 15)}
    found = depth.predict(CURVE, costs, 5.0, 15)
    assert 3 <= depth.best(found).n <= 7
    assert found[14].speedup < depth.best(found).speedup


def test_flat_costs_ask_for_the_whole_block() -> None:
    assert depth.best(depth.predict(CURVE, {1: 67.1, 15: 68.0}, 25.0, 15)).n >= 12


def test_probes_begin_with_the_deepest() -> None:
    assert depth.probes(15) == (15, 7, 3, 1)
    assert depth.probes(7) == (7, 3, 1)
    assert depth.probes(1) == (1,)

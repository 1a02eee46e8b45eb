"""d2t: what a map of draft rows to target tokens may hold, read as offsets and as absolute ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_convert.reduced import map_fault

ROWS = 512
KEPT = np.concatenate([np.arange(96), np.arange(100, 512, 13)])  # absolute ids; frequent tokens come in runs
OFFSETS = KEPT - np.arange(KEPT.size)


def marks(ids: np.ndarray) -> np.ndarray:
    found = np.zeros(ROWS, bool)
    found[ids] = True
    return found


def changed(values: np.ndarray, at: int, value: int) -> np.ndarray:
    copy = values.copy()
    copy[at] = value
    return copy


def test_right_maps_pass_both_ways() -> None:
    assert map_fault(OFFSETS, ROWS, offsets=True) is None
    assert map_fault(OFFSETS, ROWS, offsets=True, selection=marks(KEPT)) is None
    assert map_fault(KEPT, ROWS, offsets=False) is None
    assert map_fault(np.array([], np.int64), ROWS, offsets=False) is None


@pytest.mark.parametrize(
    ("stored", "offsets", "kind"),
    [
        (KEPT, True, "absolute"),
        (OFFSETS, False, "offsets"),
        (changed(KEPT, 3, -1), False, "negative"),
        (changed(OFFSETS, 3, -4), True, "negative"),
        (changed(KEPT, 127, 512), False, "range"),
        (changed(OFFSETS, 127, 385), True, "range"),
        (changed(KEPT, 3, 8), False, "twice"),
        (changed(OFFSETS, 3, 5), True, "twice"),
        (np.array([0, 3, 3, 7, 9, 12]), False, "twice"),  # ascends with the row's number added, as offsets do
        (changed(KEPT, 0, np.iinfo(np.int64).min), False, "range"),
        (changed(KEPT, 0, np.iinfo(np.int64).max), True, "range"),
    ],
)
def test_each_fault_has_its_kind(stored: np.ndarray, offsets: bool, kind: str) -> None:
    found = map_fault(stored, ROWS, offsets=offsets)
    assert found is not None
    assert found.kind == kind, found.text


def test_t2d_settles_what_a_map_holds() -> None:
    """The identity is right both ways; which one is meant, only the marked tokens tell."""
    both = np.arange(128)
    assert map_fault(both, ROWS, offsets=True) is None
    assert map_fault(both, ROWS, offsets=True, selection=marks(2 * both)) is None
    found = map_fault(both, ROWS, offsets=True, selection=marks(both))
    assert found is not None
    assert found.kind == "absolute"
    other = map_fault(OFFSETS, ROWS, offsets=True, selection=marks(KEPT[1:]))
    assert other is not None
    assert (other.kind, other.text) == ("selection", "and t2d keep different tokens: 0 is in one of them only")


def test_the_text_names_row_and_token() -> None:
    found = map_fault(changed(KEPT, 5, 600), ROWS, offsets=False)
    assert found is not None
    assert found.text == "maps draft row 5 to token 600 of 512"
    assert map_fault(changed(KEPT, 127, 600), None, offsets=False) is None  # no target, no upper bound


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=64, unique=True))
def test_any_choice_of_tokens_is_right_as_offsets_and_as_ids(tokens: list[int]) -> None:
    ids = np.array(tokens)
    assert map_fault(ids, ROWS, offsets=False, selection=marks(ids)) is None
    assert map_fault(ids - np.arange(ids.size), ROWS, offsets=True, selection=marks(ids)) is None


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=16), st.booleans())
def test_any_integers_are_judged_without_overflow(values: list[int], offsets: bool) -> None:
    index = range(len(values)) if offsets else [0] * len(values)
    ids = [value + i for value, i in zip(values, index, strict=True)]
    right = len(set(ids)) == len(ids) and all(0 <= i < ROWS for i in ids)
    assert (map_fault(np.array(values, np.int64), ROWS, offsets=offsets) is None) is right

"""Candidates as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_convert.contest.candidates import NOTHING, distinct, parse
from dflash_convert.errors import UsageError


def test_a_drafter_takes_its_block_up_to_seven(drafter: Path) -> None:
    found = parse(str(drafter))
    assert (found.methods, found.n_max, found.cap, found.p_min) == (("draft-dflash",), 7, 7, None)


def test_settings_and_mixed_methods(drafter: Path) -> None:
    found = parse(f"{drafter}+ngram-mod,n-max=3,p-min=0.5")
    assert found.methods == ("draft-dflash", "ngram-mod")
    assert (found.n_max, found.p_min) == (3, 0.5)
    assert found.settings == "n-max 3, p-min 0.5"
    assert parse("ngram-simple").drafter is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ngram-none", "neither a file nor a method"),
        ("ngram-mod,n-max=3", "setting of a drafter"),
        ("{}+eagle", "not a method that works without a drafter"),
        ("{},n-max=99", "drafts at most 7 tokens"),
        ("{},n-max=0", "n-max is a whole number from 1 to 4096, not '0'"),
        ("{},n-max=100000", "n-max is a whole number from 1 to 4096, not '100000'"),
        ("{},n-max=2.5", "n-max is a whole number"),
        ("{},n-max=nan", "n-max is a whole number"),
        ("{},p-min=1.5", "p-min is a number from 0 to less than 1, not '1.5'"),
        ("{},p-min=nan", "p-min is a number from 0"),
        ("{},n-max=3,n-max=4", "n-max is given twice"),
        ("{},n-max=3,p-min=0.5,p-min=0.5", "p-min is given twice"),
        ("{},depth=3", "not a setting of a candidate"),
    ],
)
def test_other_words_are_refused(drafter: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text.format(drafter))


def test_no_drafter_takes_part_always_and_names_differ(drafter: Path) -> None:
    one, other = parse(f"{drafter},n-max=3"), parse(f"{drafter},n-max=5")
    found = distinct([one, other])
    assert found[0] == NOTHING
    assert len({each.name for each in found}) == 3
    with pytest.raises(UsageError, match="named twice"):
        distinct([one, one])

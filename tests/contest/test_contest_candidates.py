"""Candidates as they are typed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert import hashing
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


def test_a_copy_under_another_name_is_told(played: Callable[..., Any], drafter: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.gguf", tmp_path / "other.gguf"
    shutil.copy(drafter, copy)
    data = bytearray(drafter.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    shown = played("compare", f"{copy},n-max=2", other, f"{drafter},n-max=3")
    assert shown.code == 0, shown.err
    assert f"WARNING: {copy} holds the same bytes as {drafter}: one drafter" in shown.err
    assert shown.err.count("holds the same bytes") == 1


def test_only_files_alike_in_size_and_keys_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "CHUNK", 4)
    contents = {
        "a": b"1234five",
        "longer": b"1234five6",
        "other keys": b"5678five",
        "copy": b"1234five",
        "b": b"1234six7",
    }
    paths = []
    for name, content in contents.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(content)
    (tmp_path / "link").symlink_to(paths[0])
    read: list[str] = []
    whole = hashing.known_sha256
    monkeypatch.setattr(hashing, "known_sha256", lambda path: (read.append(path.name), whole(path))[1])
    assert hashing.copies([*paths, tmp_path / "link"]) == [(tmp_path / "copy", tmp_path / "a")]
    assert set(read) == {"a", "copy", "b"}

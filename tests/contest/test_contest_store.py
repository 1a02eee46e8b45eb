"""Kept runs: found again for the same bytes and the same work alone, and only when a run can have been like that."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from machines import MACHINES, Machine, drafter

from dflash_convert.contest.candidates import Candidate
from dflash_convert.contest.trial import Store, Work, run
from dflash_convert.engine.trace import Request
from dflash_convert.hashing import stamp_of

WORK = Work("main", ("a", "b"), ("code",) * 2, (Request("a", 16), Request("b", 16)))


def rewritten(path: Path, data: bytes) -> None:
    """In place: same name, size, inode and mtime."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def candidate(tmp_path: Path) -> Candidate:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"one")
    return replace(drafter("a"), drafter=path)


def starts(store: Store, candidate: Candidate, work: Work = WORK) -> int:
    played = Machine(MACHINES["H200"], 1, {"a": 0.8})
    run(played, (candidate,), work, 1, store)
    return played.starts


def test_other_bytes_are_another_drafter_whatever_the_times_say(tmp_path: Path, candidate: Candidate) -> None:
    store = Store(tmp_path / "keep", "")
    assert [starts(store, candidate), starts(store, candidate)] == [1, 0]
    assert candidate.drafter is not None
    rewritten(candidate.drafter, b"two")
    assert starts(store, candidate) == 1


def test_a_stamp_tells_a_change_far_behind_the_head(tmp_path: Path) -> None:
    path = tmp_path / "target.gguf"
    path.write_bytes(bytes(5 << 20))
    before = stamp_of(path)
    assert stamp_of(path) == before
    rewritten(path, bytes((5 << 20) - 1) + b"x")
    assert stamp_of(path) != before


@pytest.mark.parametrize(
    "damage",
    [
        *({"generation_ms": value} for value in (-1, 0, float("nan"), float("inf"), 10**400)),
        *({"generated": value} for value in (-5, 10**9)),
        {"drafted": 3, "accepted": 4},
        {"prompt_ms": float("nan")},
        {"accepted_per_position": [-1]},
        {"steps": -1},
        {"draft_ms": -1.0},
    ],
)
def test_what_no_run_can_have_said_is_measured_again(
    tmp_path: Path, candidate: Candidate, damage: dict[str, Any]
) -> None:
    store = Store(tmp_path / "keep", "")
    starts(store, candidate)
    done = store.read(candidate, WORK, 0)
    path = store.path(candidate, WORK, 0)
    assert done is not None
    assert path is not None
    document = json.loads(json.dumps(asdict(done)))
    document["traces"][1] |= damage
    path.write_text(json.dumps(document))
    assert starts(store, candidate) == 1
    assert store.read(candidate, WORK, 0) is not None


@pytest.mark.parametrize(
    "text",
    ['{"traces": [], "wall": [], "at": 0}', "[" * 100_000, '{"traces": 1}', "[]", "", '{"traces": ["x"]}', "\xff"],
)
def test_what_is_no_run_is_measured_again(tmp_path: Path, candidate: Candidate, text: str) -> None:
    store = Store(tmp_path / "keep", "")
    starts(store, candidate)
    path = store.path(candidate, WORK, 0)
    assert path is not None
    path.write_bytes(text.encode("latin-1"))
    assert starts(store, candidate) == 1


def test_groups_of_requests_have_a_time_each(tmp_path: Path, candidate: Candidate) -> None:
    work = replace(WORK, parallel=2)
    store = Store(tmp_path / "keep", "")
    assert [starts(store, candidate, work), starts(store, candidate, work)] == [1, 0]
    path = store.path(candidate, work, 0)
    assert path is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | {"wall": []}))
    assert starts(store, candidate, work) == 1

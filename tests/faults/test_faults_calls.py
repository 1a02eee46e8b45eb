"""Every call to the file system fails in turn: the output is the old file or a complete new one, and nothing else."""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fault_points import CODES, Plan, failing, short_transfers, without_nameless_files

from dflash_convert.output import LOCK

OLD = b"the old file"
WRITING = ("pwrite", "fsync", "link", "replace", "posix_fallocate", "statvfs")
READING = ("preadv",)


def complete(run: Any, job: Any, directory: Path) -> bytes:
    path = directory / "complete.gguf"
    assert run(*job.args(path)).code == 0
    data = path.read_bytes()
    path.unlink()
    return data


# an old file to replace, a hidden name while writing, error; `make faults` takes every combination
EVERY = list(itertools.product((False, True), (False, True), CODES))
SOME = [(False, False, errno.ENOSPC), (False, True, errno.EIO), (True, False, errno.EIO), (True, True, errno.EINTR)]
CASES = EVERY if os.environ.get("DFLASH_FAULTS") == "all" else SOME


def label(case: tuple[bool, bool, int]) -> str:
    old, named, code = case
    return f"{'replace' if old else 'new'}-{'named' if named else 'nameless'}-{errno.errorcode[code]}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_every_call_fails_in_turn(
    case: tuple[bool, bool, int], job: Any, run: Callable[..., Any], tmp_path: Path, count: Callable[[str, int], None]
) -> None:
    old, named, code = case
    expected = complete(run, job, tmp_path)
    output = tmp_path / "x.gguf"
    number, failed, points = 0, 0, set()
    while True:
        if old:
            output.write_bytes(OLD)
        plan = Plan(number, code)
        with without_nameless_files() if named else nullcontext(), failing(plan):
            ended = run(*job.args(output, *(["--force"] if old else [])))
        left = sorted(p.name for p in tmp_path.iterdir())
        if plan.struck is None:
            assert ended.code == 0
            break
        points.add(plan.struck)
        failed += ended.code != 0
        check(ended, plan, left)
        if left:
            data = output.read_bytes()
            assert data == expected or (old and data == OLD and ended.code != 0), f"call {number}, {plan.struck}"
        else:
            assert ended.code != 0
            assert not old
        output.unlink(missing_ok=True)
        number += 1
    assert output.read_bytes() == expected
    assert points >= {"open", "pwrite", "fsync", "posix_fallocate", "statvfs", "mmap"}
    assert ("preadv" in points) is (job.name != "migrate")  # which maps its source
    assert points & {"link", "replace"} == {"replace"} if old and named else {"link", "replace"} if old else {"link"}
    assert number > 45
    assert failed > 0.9 * number
    count("calls to the file system failed in turn", number)


def check(ended: Any, plan: Plan, left: list[str]) -> None:
    """Exit code and message of one run; nothing but the output's own name in its directory."""
    where = f"call {plan.number} ({plan.struck}): {ended.err}"
    assert left in ([], ["x.gguf"]), where
    if ended.code == 0:
        assert plan.struck in ("flock",), where
        return
    assert ended.code == (9 if plan.struck in WRITING else 3 if plan.struck in READING else ended.code), where
    assert ended.code in (3, 9), where
    assert ended.err.startswith("ERROR "), where
    assert os.strerror(plan.code) in ended.err or "no such file" in ended.err, where
    assert "Traceback" not in ended.err, where
    assert "unexpected" not in ended.err, where
    assert len([line for line in ended.err.splitlines() if not line.startswith("TIP")]) == 1, where


@pytest.mark.parametrize("size", [1, 1000])
def test_short_reads_and_writes(size: int, job: Any, run: Callable[..., Any], tmp_path: Path, fixtures: Path) -> None:
    expected = complete(run, job, tmp_path)
    with short_transfers(max(size, 97)):
        assert run(*job.args(tmp_path / "x.gguf")).code == 0
    assert (tmp_path / "x.gguf").read_bytes() == expected


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_directory_that_may_not_be_written(code: int, run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **given: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        ended = run(*job.args(tmp_path / "x.gguf"))
    assert (ended.code, list(tmp_path.iterdir())) == (9, [])
    assert "x.gguf cannot be written: " in ended.err
    assert os.strerror(code) in ended.err
    assert "choose an" in ended.err


def test_a_write_that_writes_nothing_ends(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 0)
        ended = run(*job.args(tmp_path / "x.gguf"))
    assert (ended.code, list(tmp_path.iterdir())) == (9, [])
    assert "nothing was written" in ended.err


def test_interrupting_signals_do_no_harm(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    """A signal every 0.2 ms, with a handler, interrupts system calls all the way through."""
    expected = complete(run, job, tmp_path)
    caught = [0]

    def handler(*_: object) -> None:
        caught[0] += 1

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
    try:
        ended = run(*job.args(tmp_path / "x.gguf"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended.code == 0
    assert caught[0] > 10
    assert (tmp_path / "x.gguf").read_bytes() == expected


def test_not_enough_space_is_known_before_the_work(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    real = os.statvfs

    def full(path: Any) -> os.statvfs_result:
        found = list(real(path))
        found[4] = 1  # f_bavail, blocks
        return os.statvfs_result(found)

    plan = Plan(-1, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", full)
        with failing(plan):
            ended = run(*job.args(tmp_path / "x.gguf"))
    assert (ended.code, list(tmp_path.iterdir())) == (9, [])
    assert "MiB free, the output needs" in ended.err
    assert "TIP" in ended.err
    assert not {"pwrite", "preadv", "posix_fallocate"} & set(plan.calls)


def test_file_systems_without_fallocate(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    expected = complete(run, job, tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        assert run(*job.args(tmp_path / "x.gguf")).code == 0
    assert (tmp_path / "x.gguf").read_bytes() == expected


def test_file_systems_without_hard_links(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    expected = complete(run, job, tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no")

    with without_nameless_files(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", refuse)
        assert run(*job.args(tmp_path / "x.gguf")).code == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"x.gguf": expected}


def test_leftovers_of_a_killed_run_are_swept(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    """Only those of the same output, and only when no living run holds them."""
    import fcntl

    dead, alive = tmp_path / ".x.gguf.0123abcd.partial", tmp_path / ".x.gguf.89abcdef.partial"
    others = [".y.gguf.0123abcd.partial", ".x.gguf.partial", ".x.gguf.0123.partial", "x.gguf.0123abcd.partial"]
    for path in (dead, alive, *(tmp_path / name for name in others)):
        path.mkdir()
        (path / LOCK).touch()
        (path / "x.gguf").write_bytes(b"part")
    with (alive / LOCK).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run(*job.args(tmp_path / "x.gguf")).code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, alive.name, "x.gguf"])


def test_long_names(run: Callable[..., Any], job: Any, tmp_path: Path) -> None:
    """A name of 255 bytes leaves no room for a longer hidden one."""
    output = tmp_path / ("模" * 83 + "x.gguf")
    for _ in range(2):
        assert run(*job.args(output, "--force")).code == 0
    assert list(tmp_path.iterdir()) == [output]

"""A conversion begins with the first file that has come: what is planned, waited for, written and left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub

from dflash_convert import arrivals
from dflash_convert.arrivals import Arrivals, Head
from dflash_convert.checkpoint import Reader, SourceTensor, open_checkpoint
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.errors import CheckpointError, DflashError, HubError, OutputError
from dflash_convert.hub_weights import compare
from dflash_convert.target import Target

ROOT = Path(__file__).resolve().parents[2]
SHARDS = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]


def in_two(drafter: Path) -> dict[str, bytes]:
    """The files of a drafter whose weights are two shards and an index."""
    data = (drafter / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    names = sorted(header)
    files = {path.name: path.read_bytes() for path in drafter.iterdir() if path.suffix != ".safetensors"}
    index = {}
    for shard, part in zip(SHARDS, (names[: len(names) // 2], names[len(names) // 2 :]), strict=True):
        own: dict[str, Any] = {}
        body = b""
        for name in part:
            start, stop = (8 + length + at for at in header[name]["data_offsets"])
            own[name] = header[name] | {"data_offsets": [len(body), len(body) + stop - start]}
            body += data[start:stop]
            index[name] = shard
        text = json.dumps(own).encode()
        files[shard] = len(text).to_bytes(8, "little") + text + body
    files["model.safetensors.index.json"] = json.dumps({"weight_map": index}).encode()
    return files


def head_of(data: bytes) -> Head:
    return Head(data[: 8 + int.from_bytes(data[:8], "little")], len(data))


class Coming:
    """A drafter in a directory whose shards come when they are released."""

    def __init__(self, directory: Path, files: dict[str, bytes]) -> None:
        self.directory, self.files = directory, files
        self.released = {name: threading.Event() for name in SHARDS}
        directory.mkdir()
        for name, data in files.items():
            if name not in SHARDS:
                (directory / name).write_bytes(data)
        self.arrivals = Arrivals({directory / name: head_of(files[name]) for name in SHARDS}, self.fetch)

    def fetch(self, path: Path) -> None:
        assert self.released[path.name].wait(60)
        path.write_bytes(self.files[path.name])


@pytest.fixture
def coming(fixtures: Path, tmp_path: Path) -> Coming:
    return Coming(tmp_path / "drafter", in_two(fixtures / "tiny-js" / "drafter"))


def test_headers_are_enough_for_a_plan_and_data_is_waited_for(coming: Coming) -> None:
    whole = coming.directory.with_name("whole")
    whole.mkdir()
    for name, data in coming.files.items():
        (whole / name).write_bytes(data)
    with coming.arrivals:
        tensors = open_checkpoint(coming.directory).tensors
        assert {(t.name, t.dtype, t.shape, t.offset, t.nbytes, t.file.name) for t in tensors.values()} == {
            (t.name, t.dtype, t.shape, t.offset, t.nbytes, t.file.name) for t in open_checkpoint(whole).tensors.values()
        }
        assert arrivals.expected(coming.directory) == [coming.directory / name for name in SHARDS]
        last = next(t for t in tensors.values() if t.file.name == SHARDS[1])
        found: list[bytes] = []

        def read() -> None:
            buffer = bytearray(last.nbytes)
            with Reader() as reader:
                reader.into(last, 0, memoryview(buffer))
            found.append(bytes(buffer))

        thread = threading.Thread(target=read)
        thread.start()
        coming.released[SHARDS[0]].set()
        thread.join(0.05)
        assert not found, "the second shard has not come"
        coming.released[SHARDS[1]].set()
        thread.join(60)
        data = coming.files[SHARDS[1]]
        assert found == [data[last.offset : last.offset + last.nbytes]]
    assert arrivals.expected(coming.directory) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_shard_is_written_before_the_last_has_come(
    threads: int, coming: Coming, fixtures: Path, tmp_path: Path
) -> None:
    target = Target.read(fixtures / "tiny-js" / "target")
    first = 0

    def wrote(elements: int) -> None:
        nonlocal first
        first -= elements
        if first == 0:  # all of the first shard, and nothing waits but for the second
            coming.released[SHARDS[1]].set()

    with coming.arrivals:
        conversion = prepare(Source(coming.directory), target, Options(outtypes=("q8_0",)))
        first = sum(
            plan.sources[0].nbytes // {"BF16": 2, "F32": 4}[plan.sources[0].dtype]
            for plan in conversion.description.tensors
            if plan.sources[0].file.name == SHARDS[0]
        )
        coming.released[SHARDS[0]].set()
        write(conversion, [tmp_path / "came.gguf"], threads=threads, progress=wrote)
    assert coming.released[SHARDS[1]].is_set()
    again = prepare(Source(coming.directory), target, Options(outtypes=("q8_0",)))
    write(again, [tmp_path / "again.gguf"], threads=1)
    assert (tmp_path / "came.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_without_room_for_headers_it_is_said_and_none_is_left(
    coming: Coming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, head: Head) -> None:
        path.parent.mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(arrivals, "_stand_in", full)
    with pytest.raises(OutputError, match="cannot be written: No space left"), coming.arrivals:
        pass
    assert list((tmp_path / "temporary").iterdir()) == []
    assert arrivals.expected(coming.directory) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_does_not_come_leaves_nothing(threads: int, coming: Coming, fixtures: Path, tmp_path: Path) -> None:
    def fetch(path: Path) -> None:
        if path.name == SHARDS[1]:
            raise HubError("it is gone")
        path.write_bytes(coming.files[path.name])

    heads = {coming.directory / name: head_of(coming.files[name]) for name in SHARDS}
    (tmp_path / "out").mkdir()
    with Arrivals(heads, fetch):
        conversion = prepare(Source(coming.directory), Target.read(fixtures / "tiny-js" / "target"), Options())
        with pytest.raises(HubError, match="it is gone"):
            write(conversion, [tmp_path / "out" / "x.gguf"], threads=threads)
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.parametrize("change", ["size", "header"])
def test_another_file_than_was_planned_from_is_refused_and_removed(change: str, coming: Coming) -> None:
    def fetch(path: Path) -> None:
        data = coming.files[path.name]
        path.write_bytes(data + b"x" if change == "size" else data.replace(b"weight", b"weighs", 1))
        compare(path, head_of(data), path.name)

    path = coming.directory / SHARDS[0]
    with (
        Arrivals({path: head_of(coming.files[SHARDS[0]])}, fetch),
        pytest.raises(HubError, match="not the one whose header was read") as told,
    ):
        arrivals.wait(path)
    assert told.value.tip is not None
    assert "removed from the cache" in told.value.tip
    assert not path.exists()


def test_who_waits_when_nothing_is_wanted_any_more_is_told(coming: Coming) -> None:
    told: list[str] = []

    def wait() -> None:
        try:
            arrivals.wait(coming.directory / SHARDS[0])
        except DflashError as error:
            told.append(str(error))

    with coming.arrivals:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)
    thread.join(60)
    assert told == ["the files were no longer wanted"]
    coming.released[SHARDS[0]].set()


def test_a_head_that_is_none_is_the_readers_to_refuse(coming: Coming) -> None:
    path = coming.directory / SHARDS[0]
    (coming.directory / "model.safetensors.index.json").unlink()
    with (
        Arrivals({path: Head(b"\xff" * 8, 1000)}, lambda _: None),
        pytest.raises(CheckpointError, match="header length"),
    ):
        open_checkpoint(coming.directory)


def test_an_unknown_file_is_not_waited_for(tmp_path: Path) -> None:
    arrivals.wait(tmp_path / "x")
    tensor = SourceTensor("t", tmp_path / "x", "F32", (1,), 0, 4)
    with Reader() as reader, pytest.raises(CheckpointError, match="cannot be read"):
        reader.into(tensor, 0, memoryview(bytearray(4)))


@pytest.fixture
def hub(fixtures: Path) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        fake.add("owner/drafter", in_two(fixtures / "tiny-js" / "drafter"))
        yield fake


def run(hub: FakeHub, fixtures: Path, tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    target = str(fixtures / "tiny-js" / "target")
    call = [sys.executable, "-m", "dflash_convert", "owner/drafter", "--target-model-dir", target, *more]
    env = hub.environment(tmp_path / "home")
    return subprocess.run(call, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)


def downloads(hub: FakeHub) -> list[str]:
    """Names of the weights that were fetched, each time; headers alone are told by their length."""
    whole = [r for r in hub.log if r.path.endswith(".safetensors") and r.method == "GET" and r.sent > 20_000]
    return [r.path.rpartition("/")[2] for r in whole]


def test_a_dry_run_fetches_headers_alone(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    done = run(hub, fixtures, tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert downloads(hub) == []


def test_a_hub_that_fails_in_the_middle_leaves_no_output_and_what_it_gave(
    hub: FakeHub, fixtures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out" / "x.gguf"
    out.parent.mkdir()
    asked, released = hub.held[SHARDS[1]] = threading.Event(), threading.Event()
    done: list[subprocess.CompletedProcess[str]] = []
    process = threading.Thread(target=lambda: done.append(run(hub, fixtures, tmp_path, "-o", str(out))))
    process.start()
    assert asked.wait(60)
    hub.fail[f"/owner/drafter/resolve/{hub.repos['owner/drafter'].refs['main']}/{SHARDS[1]}"] = 403
    released.set()
    process.join(60)
    assert done[0].returncode == 8, done[0].stderr
    assert f"the Hub refuses {SHARDS[1]} (status 403)" in done[0].stderr
    assert "later" not in done[0].stderr
    assert [*out.parent.iterdir()] == []
    hub.fail.clear()
    hub.log.clear()
    hub.break_after = 30_000
    again = run(hub, fixtures, tmp_path, "-o", str(out))
    assert again.returncode == 0, again.stderr
    assert SHARDS[0] not in downloads(hub)
    assert downloads(hub).count(SHARDS[1]) >= 1
    assert out.stat().st_size > 100_000


def test_ctrl_c_while_a_file_is_fetched_ends_at_once(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    asked, released = hub.held[SHARDS[1]] = threading.Event(), threading.Event()
    call = [sys.executable, "-m", "dflash_convert", "owner/drafter", "--target-model-dir"]
    call += [str(fixtures / "tiny-js" / "target"), "-o", str(tmp_path / "out" / "x.gguf"), "--threads", "2"]
    env = hub.environment(tmp_path / "home")
    with subprocess.Popen(call, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            released.set()
    assert "\nERROR interrupted\nTIP   what was fetched from the Hub is kept; the same command goes on:\n" in f"\n{err}"
    # with -m Python ends itself by the signal where it came while a text ran, as the ones dataclasses are made from
    assert process.returncode in (130, -signal.SIGINT)
    assert [*(tmp_path / "out").iterdir()] == []

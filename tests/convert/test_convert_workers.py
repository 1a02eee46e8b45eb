"""The processes that share a conversion, this one among them."""

from __future__ import annotations

import errno
import math
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_convert import conversion as convert
from dflash_convert.conversion import Conversion, Options, Source
from dflash_convert.encode.pool import Pool
from dflash_convert.encode.rows import Encoders
from dflash_convert.errors import CheckpointError, DflashError, InputError
from dflash_convert.processes import Workers
from dflash_convert.system import can_share
from dflash_convert.target import Target

pytestmark = pytest.mark.skipif(not can_share(), reason="no workers where files cannot be handed over")


@pytest.fixture
def conversion(fixtures: Path) -> Conversion:
    pair = fixtures / "tiny-js"
    return convert.prepare(Source(pair / "drafter"), Target.read(pair / "target"), Options(outtypes=("q8_0",)))


@pytest.fixture
def expected(conversion: Conversion, tmp_path: Path) -> bytes:
    return convert.write(conversion, [tmp_path / "alone.gguf"], threads=1)[0].path.read_bytes()


def in_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Run ``code`` in every worker before it begins."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import os, sys, time\nif 'dflash_convert.encode.worker' in str(sys.orig_argv):\n    {code}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_what_a_worker_wrote_is_the_same(
    conversion: Conversion, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, began, run = [], threading.Event(), Encoders.run

    def later(self: Encoders, piece: Any) -> None:
        assert began.wait(60), "the worker did nothing"
        run(self, piece)

    def progress(elements: int) -> None:
        whole.append(elements)
        began.set()

    monkeypatch.setattr(Encoders, "run", later)
    done = convert.write(conversion, [tmp_path / "a.gguf"], threads=2, progress=progress)[0]
    assert done.path.read_bytes() == expected
    assert sum(whole) == sum(math.prod(plan.shape) for plan, _ in conversion.files[0].tensors)


def test_this_process_does_the_work_of_a_worker_that_is_late(
    conversion: Conversion, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, ran, run = tmp_path / "go", [], Encoders.run

    def counted(self: Encoders, piece: Any) -> None:
        run(self, piece)
        ran.append(piece)
        sign.touch()

    in_workers(monkeypatch, tmp_path, f"any(os.path.exists({str(sign)!r}) or time.sleep(0.01) for _ in range(6000))")
    monkeypatch.setattr(Encoders, "run", counted)
    assert convert.write(conversion, [tmp_path / "a.gguf"], threads=2)[0].path.read_bytes() == expected
    assert ran


def test_an_error_in_this_process_ends_all(
    conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise CheckpointError("a row that cannot be read")

    monkeypatch.setattr(Encoders, "run", broken)
    with Pool(2) as pool, pytest.raises(CheckpointError, match="a row that cannot be read"):
        convert.write(conversion, [tmp_path / "a.gguf"], threads=2, pool=pool)
    assert not (tmp_path / "a.gguf").exists()
    assert pool._workers == []


@pytest.mark.parametrize("moment", ["close", "join"])
def test_a_second_interrupt_leaves_no_thread_that_writes(
    moment: str, conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is closed then, and the descriptor's number may become another file's."""
    began, writing, owner, name = threading.Event(), [], threading.Thread, "join"
    if moment == "close":
        owner, name = Pool, "close"
    real = getattr(owner, name)

    def run(self: Encoders, piece: Any) -> None:
        writing.append(piece)
        began.set()
        time.sleep(0.3)
        writing.clear()

    def interrupted(*given: Any) -> None:
        monkeypatch.setattr(owner, name, real)
        raise KeyboardInterrupt

    def progress(elements: int) -> None:
        assert began.wait(60)
        monkeypatch.setattr(owner, name, interrupted)
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoders, "run", run)
    with Pool(2) as pool, pytest.raises(KeyboardInterrupt):
        convert.write(conversion, [tmp_path / "a.gguf"], threads=2, progress=progress, pool=pool)
    assert getattr(owner, name) is real, "it was interrupted twice"
    assert writing == []
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize(
    ("end", "reason", "tip"),
    [("os._exit(77)", "exit status 77", False), ("os.kill(os.getpid(), 9)", "exit status -9", True)],
)
def test_a_worker_that_dies_ends_all(
    conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, reason: str, tip: bool
) -> None:
    """Although this process could do what is left: what the worker wrote last may be half written."""
    in_workers(monkeypatch, tmp_path, end)
    with pytest.raises(DflashError, match=rf"ended unexpectedly \({reason}\)") as caught:
        convert.write(conversion, [tmp_path / "a.gguf"], threads=2)
    assert ("memory" in (caught.value.tip or "")) is tip
    assert not (tmp_path / "a.gguf").exists()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("change", ["replaced", "written", "removed"])
def test_a_source_that_changes_is_not_half_read(change: str, threads: int, fixtures: Path, tmp_path: Path) -> None:
    """A training run may save its next checkpoint: no file is made of two. One that is gone is read on."""
    drafter = Path(shutil.copytree(fixtures / "tiny-js" / "drafter", tmp_path / "drafter"))
    weights, target = drafter / "model.safetensors", Target.read(fixtures / "tiny-js" / "target")
    prepared = convert.prepare(Source(drafter), target, Options(outtypes=("q8_0",)))
    outputs = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    whole = convert.write(prepared, outputs[:1], threads=1)[0].path.read_bytes()
    seen: list[int] = []

    def progress(elements: int) -> None:
        seen.append(elements)
        if change == "removed" and sum(seen) == sum(math.prod(plan.shape) for plan, _ in prepared.files[0].tensors):
            weights.unlink()  # when every process has opened it
        elif len(seen) == 1 and change == "written":
            with weights.open("r+b") as file:
                file.seek(-2, os.SEEK_END)
                file.write(b"xx")
        elif len(seen) == 1 and change == "replaced":
            (drafter / "new").write_bytes(weights.read_bytes())
            (drafter / "new").replace(weights)

    if change == "removed":
        assert convert.write(prepared, outputs[1:], threads=threads, progress=progress)[0].path.read_bytes() == whole
        assert not weights.exists()
        return
    with pytest.raises(InputError, match=r"model\.safetensors changed while it was read"):
        convert.write(prepared, outputs[1:], threads=threads, progress=progress)
    assert not outputs[1].exists()


@pytest.mark.parametrize("where", ["worker", "here"])
def test_without_memory_either_process_says_the_same(
    where: str, conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign, run = tmp_path / "began", Encoders.run

    def here(self: Encoders, piece: Any) -> None:
        end = time.monotonic() + 60
        while not sign.exists():
            assert time.monotonic() < end, "the worker did nothing"
            time.sleep(0.01)
        run(self, piece)
        if where == "here":
            raise MemoryError

    fails = "bytearray(1 << 60)" if where == "worker" else "time.sleep(60)"
    in_workers(monkeypatch, tmp_path, f"os.pwrite = lambda *_: (open({str(sign)!r}, 'w').close(), {fails})")
    monkeypatch.setattr(Encoders, "run", here)
    with pytest.raises(DflashError, match="there is not enough memory for this work") as caught:
        convert.write(conversion, [tmp_path / "a.gguf"], threads=2)
    assert "--threads 1" in (caught.value.tip or "")
    assert not (tmp_path / "a.gguf").exists()


def test_where_the_system_starts_no_process_it_is_said(
    conversion: Conversion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("dflash_convert.processes.subprocess.Popen", refused)
    with pytest.raises(DflashError, match=f"a worker process cannot be started .{os.strerror(errno.EAGAIN)}.$"):
        convert.write(conversion, [tmp_path / "a.gguf"], threads=2)
    assert not (tmp_path / "a.gguf").exists()


def test_closed_while_an_exchange_begins_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers("encode.worker", 1)

    class Closing(threading.Thread):
        """Its first start, that of the tasks' thread, comes after a close."""

        def start(self) -> None:
            workers.close()
            super().start()

    seen: list[Any] = []

    def exchange() -> None:
        try:
            workers.exchange([{}], [], lambda *_: None)
        except (DflashError, ValueError) as error:
            seen.append(error)

    thread = threading.Thread(target=exchange, daemon=True)
    monkeypatch.setattr("dflash_convert.processes.threading.Thread", Closing)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len(seen) == 1

"""SIGTERM and SIGHUP end a conversion like Ctrl-C: no worker, no hidden file and no traceback stays."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_convert import child
from dflash_convert.system import can_share, ending_signals


def convert(fixtures: Path, output: Path) -> list[str]:
    pair = fixtures / "tiny-js"
    program = [sys.executable, "-m", "dflash_convert", str(pair / "drafter")]
    return [*program, "--target-model-dir", str(pair / "target"), "-o", str(output)]


@contextmanager
def proving(fixtures: Path, tmp_path: Path, number: signal.Signals) -> Iterator[subprocess.Popen[str]]:
    """`convert --validate`, its file written and not yet proved."""
    command = [*convert(fixtures, tmp_path / "out"), "--validate", str(fixtures / "tiny-js" / "target-bf16.gguf")]
    # whoever runs the tests may ignore the signal (nohup does), and children inherit that
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=None if number == signal.SIGKILL else lambda: signal.signal(number, signal.SIG_DFL),
    )
    with process:
        end = time.monotonic() + 60
        while not list(tmp_path.glob("out/.*.partial/*.gguf")):  # from here on a hidden file has to go
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.01)
        yield process


@pytest.mark.parametrize("number", ending_signals(), ids=lambda number: number.name)
def test_an_ended_proof_leaves_nothing(number: signal.Signals, fixtures: Path, tmp_path: Path) -> None:
    with proving(fixtures, tmp_path, number) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == -number
    assert (out, "Traceback" in err) == ("", False)
    last = (
        "ERROR interrupted\nTIP   no output was written; the same command starts again from the beginning:\n  dflash-"
    )
    assert last in err
    left = [path.name for path in (tmp_path / "out").iterdir()]
    # where an open file cannot be removed, what the interrupted step has mapped stays hidden until the next run
    assert all(name.startswith(".") for name in left) if not can_share() else left == []


def test_what_a_killed_proof_leaves_goes_with_the_next_run(fixtures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with proving(fixtures, tmp_path, signal.SIGKILL) as process:
        process.kill()
        process.communicate(timeout=60)
    assert len(list(out.glob(".*.partial/*.gguf"))) == 1
    subprocess.run(convert(fixtures, out), check=True, capture_output=True)
    assert [path.name for path in out.iterdir()] == ["dflash-target-BF16.gguf"]


@pytest.mark.parametrize("when", ["before the outputs", "before a job", "during a job"])
@pytest.mark.skipif(not can_share(), reason="no workers where files cannot be handed over")
def test_a_worker_whose_parent_is_gone_ends_quietly(when: str) -> None:
    job = b'{"name": "x", "shape": [1, 1], "transform": "copy", "argument": 0, "scheme": "", "block": [0, 0], '
    job += b'"type": null, '
    job += b'"sources": [["x", "/nonexistent", "F32", [1, 1], 0, 4]], "rows": [0, 1], "imatrix": "", "places": []}\n'
    ours, theirs = socket.socketpair()
    worker = subprocess.Popen(child.command("encode.worker"), stdin=theirs.fileno(), stderr=subprocess.PIPE)
    theirs.close()
    with ours:
        if when != "before the outputs":
            socket.send_fds(ours, [b"[0]"], [0])
            assert ours.recv(100) == b"{}\n"
        if when == "during a job":
            ours.sendall(job)
    assert worker.communicate(timeout=60)[1] == b""
    assert worker.returncode == 0

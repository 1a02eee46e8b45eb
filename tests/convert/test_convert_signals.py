"""SIGTERM and SIGHUP end a conversion like Ctrl-C: no worker, no hidden file and no traceback stays."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_convert import child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_an_ended_proof_leaves_nothing(number: signal.Signals, fixtures: Path, tmp_path: Path) -> None:
    pair = fixtures / "tiny-js"
    command = [
        sys.executable,
        "-m",
        "dflash_convert",
        str(pair / "drafter"),
        "--target-model-dir",
        str(pair / "target"),
    ]
    command += ["--validate", str(pair / "target-bf16.gguf"), "-o", str(tmp_path / "out")]
    # whoever runs the tests may ignore the signal (nohup does), and children inherit that
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob("out/.dflash-convert-*/*.gguf")):  # from here on a hidden file has to go
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -number
    assert (out, "Traceback" in err) == ("", False)
    assert err.rstrip().endswith("ERROR interrupted")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("when", ["before the outputs", "before a job", "during a job"])
def test_a_worker_whose_parent_is_gone_ends_quietly(when: str) -> None:
    job = b'{"name": "x", "shape": [1, 1], "transform": "copy", "argument": 0, "scheme": "", "block": [0, 0], '
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

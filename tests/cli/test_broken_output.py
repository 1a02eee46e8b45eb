"""An output that takes no more is exit code 9, a reader that goes away ends the program by the pipe's own signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from dflash_convert.container.reader import open_gguf
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.target import Target

LINES = {
    "the main page": "--help",
    "a command's page": "convert --help",
    "the version": "--version",
    "convert, planned": "{tiny}/drafter --target-model-dir {tiny}/target --dry-run",
    "convert": "{tiny}/drafter --target-model-dir {tiny}/target -o {out} --force",
    "quantize, planned": "quantize {gguf} o.gguf q8_0 --dry-run",
    "inspect": "inspect {gguf}",
    "inspect, as JSON": "inspect {gguf} --json",
    "check": "check {gguf} {tiny}/target --json",
    "verify": "verify {gguf} {tiny}/drafter --target-model-dir {tiny}/target",
    "diff": "diff {gguf} {tiny}/target-bf16.gguf",
    "doctor": "doctor",
}
Run = Callable[[str, IO[bytes] | int], subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def gguf(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("broken") / "dflash-target-BF16.gguf"
    tiny = fixtures / "tiny-js"
    write(prepare(Source(tiny / "drafter"), Target.read(tiny / "target"), Options()), [path], threads=1)
    return path


@pytest.fixture
def run(gguf: Path, fixtures: Path, tmp_path: Path) -> Run:
    def call(line: str, stdout: IO[bytes] | int) -> subprocess.CompletedProcess[bytes]:
        filled = line.format(tiny=fixtures / "tiny-js", gguf=gguf, out=tmp_path / "x.gguf")
        command = [sys.executable, "-m", "dflash_convert", *filled.split()]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, cwd=tmp_path, env=env, timeout=120, check=False
        )

    return call


@pytest.mark.parametrize("name", LINES)
def test_a_full_output_is_exit_9(name: str, run: Run) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(LINES[name], full)
    assert done.returncode == 9, done.stderr
    assert b"standard output cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("name", ["the main page", "convert", "inspect", "check", "doctor"])
def test_a_reader_that_goes_away(name: str, run: Run) -> None:
    read, written = os.pipe()
    os.close(read)
    try:
        done = run(LINES[name], written)
    finally:
        os.close(written)
    assert done.returncode == -signal.SIGPIPE, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_messages_that_nobody_can_read(fixtures: Path, tmp_path: Path) -> None:
    tiny = fixtures / "tiny-js"
    line = [sys.executable, "-m", "dflash_convert", str(tiny / "drafter"), "--target-model-dir", str(tiny / "target")]
    with Path("/dev/full").open("wb") as full:
        refused = subprocess.run([*line, "-t", "q9"], stderr=full, cwd=tmp_path, timeout=60, check=False)
        broken = subprocess.run(line, stderr=full, stdout=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
    assert refused.returncode == 2
    assert broken.returncode == 9
    for path in tmp_path.iterdir():
        open_gguf(path)  # none, or a whole one

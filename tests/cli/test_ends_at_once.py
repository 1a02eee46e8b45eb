"""The program's own process ends without the interpreter's tidying, and loses nothing by it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import atexit, sys
sys.argv = ["dflash-convert", *{args!r}]
{before}
from dflash_convert import cli
{after}
cli.run()
"""


def ended(tmp_path: Path, *args: str, before: str = "pass", after: str = "pass") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", START.format(args=args, before=before, after=after)]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)


@pytest.mark.parametrize(("args", "status"), [(("--version",), 0), (("nothing-here",), 2), (("inspect", "."), 3)])
def test_the_status_is_that_of_the_command(args: tuple[str, ...], status: int, tmp_path: Path) -> None:
    done = ended(tmp_path, *args)
    assert done.returncode == status
    assert done.stdout if status == 0 else done.stderr.startswith("ERROR")


def test_what_others_do_at_the_end_is_done_first(tmp_path: Path) -> None:
    later = "main = cli.main; cli.main = lambda: (atexit.register(print, 'told', flush=True), main())"
    assert ended(tmp_path, "--version", after=later).stdout.endswith("told\n")


def test_the_interpreter_tidies_nothing(tmp_path: Path) -> None:
    slow = "atexit.register(print, 'tidied', flush=True)"
    assert "tidied" not in ended(tmp_path, "--version", before=slow).stdout


def test_an_output_that_nobody_can_write_is_no_success(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        line = [sys.executable, "-m", "dflash_convert", "--help"]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 9
    assert "standard output cannot be written" in done.stderr

"""Where a contest writes: tried before anything runs; what ran is shown before a file is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.cli import contest, main
from dflash_convert.contest.prepare import usable
from dflash_convert.errors import OutputError

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "fixtures" / "tiny-js" / "target-bf16.gguf"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, not even root's")


@LINUX
@pytest.mark.parametrize("option", ["--preset", "--html"])
def test_a_place_that_takes_no_files_is_told_before_the_first_run(played: Callable[..., Any], option: str) -> None:
    ran = played("compare", "ngram-simple", option, "/proc/x.ini")
    assert ran.code == 9
    assert "/proc/x.ini cannot be written" in ran.err
    assert "round 1" not in ran.err


def test_one_name_for_two_outputs_is_refused(played: Callable[..., Any], tmp_path: Path) -> None:
    ran = played("compare", "ngram-simple", "--preset", tmp_path / "x", "--html", tmp_path / "x")
    assert (ran.code, "--preset and --html are both" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_a_result_is_shown_though_its_preset_cannot_be_written(
    played: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def full(*_: object) -> None:
        raise OutputError("the disk is full")

    monkeypatch.setattr(contest.ContestGiven, "write_preset", full)
    ran = played(command, "--json", "--preset", tmp_path / "x.ini", mode="normal")
    assert ran.code == 9
    assert json.loads(ran.out)["schema"] == 1


@pytest.mark.parametrize("place", ["file", "file/below", pytest.param("/proc/x", marks=LINUX), "/dev/null/x"])
def test_what_cannot_keep_runs_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot keep finished runs") as found:
        usable(tmp_path / place)
    assert "--fresh" in (found.value.tip or "")
    assert usable(tmp_path / "a" / "b").is_dir()


def test_an_unusable_keep_ends_the_command_before_the_first_run(
    tmp_path: Path, fake_server: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keep").write_text("")
    call = ["compare", TARGET, "ngram-simple", "--keep", tmp_path / "keep", "--llama-server", fake_server("normal")]
    with pytest.raises(SystemExit) as end:
        main(list(map(str, call)))
    assert end.value.code == 9
    told = capsys.readouterr().err
    assert "cannot keep finished runs" in told
    assert "round 1" not in told

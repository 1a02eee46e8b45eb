"""What a person sees: lines that fit, colours that judge, progress, and nothing of it in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert.cli import progress, terminal
from dflash_convert.cli.progress import SHORTEST, Progress
from dflash_convert.cli.terminal import GREEN, OFF, RED, YELLOW, echo
from dflash_convert.text import columns, duration, number, percent, size, wrap

ROOT = Path(__file__).resolve().parents[2]


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Screen]:
    """look(): from here on someone sees standard error."""

    def call() -> Screen:
        monkeypatch.setattr(sys, "stderr", shown := Screen())
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        return shown

    return call


JUDGED = {
    "verdict: healthy (all)": GREEN,
    "validate: verdict: weak (few)": YELLOW,
    "verdict: engine failure (x)": RED,
    "gain here: slower, 0.4 x": RED,
    "gain here: no gain": YELLOW,
    "  WARNING: forced": YELLOW,
    "  fallback: blk.0": YELLOW,
    "DIFFERENT  key x": RED,
    "ERROR it broke": RED,
    "error    vocabulary": RED,
    "warning  name": YELLOW,
    "  ok  Python 3.11": GREEN,
    "  XX  llama-server": RED,
    "[1/2] tiny/Q8_0: done": GREEN,
    "[2/2] tiny/Q4_0: failed at verify": RED,
    "package tiny: blocked: x failed": YELLOW,
    "* a.gguf n4                    52.0   1.52  1.48 to 1.56    3.10  faster": GREEN,
    "  a.gguf n9                    31.0   0.91  0.88 to 0.93    3.40  slower": RED,
    "tiny/Q8_0     failed   5     verify: it differs": RED,
    "total    120  48.1 %  2.64  25.00  NO": RED,
}


@pytest.mark.parametrize("line", JUDGED)
def test_colour_says_how_it_went(line: str, look: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = look()
    echo(line, err=True)
    shown = screen.getvalue()
    assert re.findall(r"\x1b\[\d+m", shown) == [JUDGED[line], OFF]
    assert re.sub(r"\x1b\[\d+m", "", shown) == line + "\n"
    monkeypatch.setenv("NO_COLOR", "1")
    echo(line, err=True)
    assert screen.getvalue() == shown + line + "\n"


def test_a_stranger_s_colours_are_none(look: Callable[[], Screen]) -> None:
    screen = look()
    echo("the tokenizer says broken: \x1b[31mred", err=True)
    assert screen.getvalue() == "the tokenizer says broken: \\x1b[31mred\n"


def test_lines_are_broken_between_words_and_commands_where_they_can_be_pasted(look: Callable[[], Screen]) -> None:
    screen = look()
    echo("  WARNING: " + "word " * 30, err=True)
    echo("  dflash-convert check " + "x" * 90 + " y", err=True)
    *prose, first, second, last = re.sub(r"\x1b\[\d+m", "", screen.getvalue()).splitlines()
    assert len(prose) == 3
    assert all(len(line) <= 80 for line in prose)
    assert all(line.startswith("    word") for line in prose[1:])
    assert [first, second, last] == ["  dflash-convert check \\", "    " + "x" * 90 + " \\", "    y"]


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    echo("word " * 100)
    assert capsys.readouterr().out == "word " * 100 + "\n"
    assert wrap("a b", None) == ["a b"]
    for stated, expected in (("100", 100), ("", None), ("x", None), ("7", None)):
        monkeypatch.setenv("COLUMNS", stated)
        assert terminal.width() == expected


def test_a_table_gives_way_where_its_words_are() -> None:
    rows = [("name", "bytes"), None, ("a long name of something that is long", "1,234,567,890")]
    lines = columns(rows, "<>", 40)
    assert max(map(len, lines)) <= 40
    assert lines[2:] == ["a long name of               1,234,567,890", "something that is", "long"] or all(
        "1,234,567,890" in line for line in lines[2:3]
    )
    assert columns(rows, "<>") == columns(rows, "<>", 400)


def test_one_form_for_each_kind_of_figure() -> None:
    assert [size(n) for n in (0, 9_728, 3_237_184, 1_234_567_890)] == ["0.000 MiB", "0.009 MiB", "3.1 MiB", "1.15 GiB"]
    assert [number(x) for x in (1e6, 0.1, 1e-5, 1e300)] == ["1000000", "0.1", "1e-05", "1e+300"]
    assert [percent(x) for x in (0.4809, 1.0)] == ["48.1 %", "100.0 %"]
    assert percent(0.99531, 2) == "99.53 %"
    assert [duration(s) for s in (4.21, 200, 3900)] == ["4.2 s", "3 min 20 s", "1 h 5 min"]


# --- progress ---------------------------------------------------------------------------------------------------


def test_a_bar_has_a_total_and_says_what_is_left(look: Callable[[], Screen]) -> None:
    screen = look()
    with Progress("validating", "requests", 4) as bar:
        bar.item("a prompt")
        for _ in range(4):
            bar.update()
        bar._bar.refresh()  # type: ignore[union-attr]
    shown = screen.getvalue()
    assert re.search(r"validating: 100 % \|.*\| 4/4 requests, .*left, a prompt", shown)
    assert max(len(part) for part in re.split(r"[\r\n]", shown)) <= 80


@pytest.mark.parametrize("phase", ["validating", "one request at a time", "sampled at temperature 0.8"])
@pytest.mark.parametrize("unit", ["requests", "weights"])
@pytest.mark.parametrize("columns", [60, 80, 100, 140])
def test_a_bar_has_room_at_any_width(
    phase: str, unit: str, columns: int, look: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first look on, with times from milliseconds to hours."""
    look()
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress(phase, unit, 1040) as shown:
        bar = shown._bar
        assert bar is not None
        for name in ("", "a prompt whose name is longer than any bar could show it"):
            shown.item(name)
            for done, seconds in ((0, 0.0), (1, 0.001), (13, 200.0), (600, 9_000.0), (1040, 99_999.0)):
                bar.n, bar.start_t = done, bar._time() - seconds
                line = str(bar)
                assert len(line) <= columns
                found = re.search(r"\|(.*)\|", line)
                assert found
                assert len(found[1]) >= SHORTEST
                assert "?" not in line
                assert not re.search(r"\d/s|s/|\d%|\d:\d", line.replace(f" {unit}/s", ""))
                assert not done or " left" in line
                if name and columns >= 80 and len(phase) < 20:
                    assert ", a prom" in line


def test_a_message_stands_above_the_bar(look: Callable[[], Screen]) -> None:
    screen = look()
    with Progress("validating", "requests", 2) as bar:
        bar.update()
        echo("round 1", err=True)
    assert re.search(r"(^|[\r\n ])round 1\n", screen.getvalue())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come at once, not every ten seconds."""
    monkeypatch.setattr(progress, "EVERY", 0.0)


def test_a_pipe_gets_lines(hasty: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("comparing", "weights", 4_000_000) as bar:
        bar.update(1_000_000)
        bar.item("blk.0")
        bar.update(1_000_000)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"comparing: 25 %, 1\.00M of 4\.00M weights, about .* left\n"
        r"comparing: 50 %, 2\.00M of 4\.00M weights, about .* left, blk\.0\n",
        err,
    )


def test_a_short_step_in_a_pipe_and_a_quiet_one_say_nothing(capsys: pytest.CaptureFixture[str], hasty: None) -> None:
    with Progress("comparing", "weights", 4, quiet=True) as bar:
        bar.update(4)
    with Progress("comparing", "weights", 0) as bar:
        bar.update(0)
    assert capsys.readouterr() == ("", "")


def test_work_that_was_added_on_the_way_enters_the_total(capsys: pytest.CaptureFixture[str], hasty: None) -> None:
    with Progress("validating", "requests", 2) as bar:
        bar.update(2)
        bar.update(2)
    assert capsys.readouterr().err.splitlines()[-1].startswith("validating: 100 %, 4 of 4 requests")


# --- a whole command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_on_a_real_terminal(plain: bool, tmp_path: Path) -> None:
    """check on a pseudo terminal of 80 columns: colour where it is wanted, and every line fits."""
    tiny = ROOT / "fixtures" / "tiny-js"
    line = [
        sys.executable,
        "-m",
        "dflash_convert",
        "check",
        str(tiny / "drafter"),
        str(tiny / "target"),
        "--n-max",
        "99",
    ]
    main, other = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"} | ({"NO_COLOR": "1"} if plain else {})
    if not plain:
        environment.pop("NO_COLOR", None)
    done = subprocess.Popen(line, stdout=other, stderr=other, env=environment)
    os.close(other)
    shown = b""
    while part := _read(main):
        shown += part
    assert done.wait(60) == 0
    text = shown.decode()
    assert (f"{YELLOW}warning{OFF}" in text) is not plain
    assert "warning" in text
    bare = [re.sub(r"\x1b\[\d+m", "", row) for row in text.split("\r\n")]
    assert all(len(row) <= 80 or row.lstrip().startswith("dflash-convert ") for row in bare), bare


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # the other end is closed
        return b""

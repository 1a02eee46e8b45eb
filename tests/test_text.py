"""Text for people: harmless, short, in columns."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from import_graph import PACKAGE

from dflash_convert.text import broken_command, columns, one_line, percent, printable, short, shorten, size


def test_nothing_of_a_file_drives_the_terminal() -> None:
    assert printable("a\x1b[2J\u202eb\ud800\tc\nd") == "a\\x1b[2J\\u202eb\\ud800\tc\nd"
    assert one_line("a\r\nb") == "a\\r\\nb"
    assert printable("Grüße 漢字 🙂") == "Grüße 漢字 🙂"


def test_a_cut_is_seen() -> None:
    assert shorten("a" * 60) == "a" * 60
    assert shorten("a" * 61) == "a" * 59 + "…"
    assert (short(0.1 + 0.2), short(b"\xff"), short("\x00")) == ("0.3", "'\\\\xff'", "'\\x00'")
    assert len(short("x" * 99)) == 60


def test_one_unit_of_bytes_and_one_form_of_shares() -> None:
    """Sizes and shares are written by one function each; no module has a format of its own."""
    assert [size(n) for n in (0, 9_728, 104_858, 3_237_184, (1 << 30) - 1, 1 << 30, 1_234_567_890)] == [
        *("0.000 MiB", "0.009 MiB", "0.1 MiB", "3.1 MiB", "1,024.0 MiB", "1.00 GiB", "1.15 GiB")
    ]
    assert (percent(0.1234), percent(1, 0), percent(-0.1, signed=True), percent(0.0, signed=True)) == (
        *("12.3 %", "100 %", "-10.0 %", "+0.0 %"),
    )
    shares = r":[^{}\"']*[fg]\} %|:[^{}\"']*%\}"
    sizes = r"\} [kMGT]i?B\b|\{[^{}]*(/ 1e[69]|// 1_000_000|// 10\*\*6|>> [23]0)"
    own = re.compile(f"{shares}|{sizes}")
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := [line for line in path.read_text("utf-8").splitlines() if own.search(line)])
    }
    assert {"text.py"} <= found.keys() <= {"text.py", *LIMITS}, found


# the limit of a JSON file, a round number of bytes; devices in llama-server's own words
LIMITS = ("jsonfile.py", "engine/probe.py")


def test_columns() -> None:
    rows = [("type", "count", "note"), None, ("Q8_0", "7", ""), ("F32", "1,400", "small")]
    assert columns(rows, "<><") == [
        "type  count  note",
        "----  -----  -----",
        "Q8_0      7",
        "F32   1,400  small",
    ]
    assert columns([("a", "b", "c"), ("aa", "bb", "cc")], "<>") == ["a    b   c", "aa  bb  cc"]


COMMANDS = (
    "llama-server -m TARGET.gguf -md dflash-x.gguf --spec-type draft-dflash --spec-draft-n-max 7 -fa on",
    "  dflash-convert package 'a b.gguf' \"it's.gguf\" --target-gguf models/target-of-a-long-name.gguf --out PACKAGE",
    shlex.join(
        ["dflash-convert", "validate", "d'x.gguf", "t\\x.gguf", "--n-max", "-1", "--", "-ngl", "9", "a  b", "c"]
    ),
    "dflash-convert " + " ".join(f"{'d' * n}.gguf" for n in range(1, 30)) + " --json",
)


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("width", [20, 40, 80, None])
def test_a_broken_command_is_the_same_command(line: str, width: int | None) -> None:
    lines = broken_command(line, width)
    shown = subprocess.run(
        ["sh", "-c", "printf '%s\\n' " + "\n".join(lines)], capture_output=True, check=True, text=True
    )
    assert shown.stdout.splitlines() == shlex.split(line)
    assert (len(lines) == 1) == (width is None or len(line) <= width)
    if width == 80:
        assert max(map(len, lines)) <= width
    indent = len(line) - len(line.lstrip())
    assert all(each.startswith(" " * (indent + 2)) for each in lines[1:])


def test_what_is_no_command_is_left_alone() -> None:
    line = "dflash-convert doesn't know " + "word " * 20
    assert broken_command(line, 40) == [line]

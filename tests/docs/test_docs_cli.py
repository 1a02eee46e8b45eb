"""The command line reference is complete and current, and the habits it promises hold."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest

from dflash_convert.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "cli.md"
SCHEMAS = ROOT / "docs" / "schemas.md"


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def section(name: str) -> str:
    """The reference's text of one command."""
    parts = REFERENCE.read_text(encoding="utf-8").split("\n## ")
    (found,) = [part for part in parts if part.startswith(f"dflash-convert {name}\n")]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    text = section(name)
    for parameter in command(name).params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{name} {option}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    found = command(name)
    assert found.help
    for parameter in found.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("threads",):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


def test_reference_is_current() -> None:
    call = [sys.executable, str(ROOT / "docs" / "make_cli_reference.py"), "--check"]
    assert subprocess.run(call, check=False).returncode == 0, "run: python docs/make_cli_reference.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_json_document_is_described(name: str) -> None:
    """A command with --json has a chapter in docs/schemas.md with its version, and a command without has none."""
    text = SCHEMAS.read_text(encoding="utf-8")
    has_json = any("--json" in parameter.opts for parameter in command(name).params)
    chapter = re.search(rf"^## {name} +\(schema (\d+)\)$", text, re.MULTILINE)
    assert bool(chapter) is has_json, name


# --- habits


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    call = [sys.executable, "-m", "dflash_convert", *arguments]
    return subprocess.run(call, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    if shell == "bash" and not Path("/bin/bash").exists():
        pytest.skip("click asks bash for its version")
    done = run(_DFLASH_CONVERT_COMPLETE=f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert f"_DFLASH_CONVERT_COMPLETE={shell}_complete" in done.stdout
    assert f"{shell}_source dflash-convert" in REFERENCE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "at", "expected"),
    [
        ("dflash-convert va", 1, {"validate"}),
        ("dflash-convert p", 1, {"package", "publish"}),
        ("dflash-convert package --valid", 2, {"--validation"}),
        ("dflash-convert validate --thinking o", 3, {"on", "off"}),
    ],
)
def test_completion_answers(words: str, at: int, expected: set[str]) -> None:
    done = run(_DFLASH_CONVERT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(at))
    assert {line.split(",", 1)[1] for line in done.stdout.splitlines()} == expected


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the program writes to stderr when that is a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 100, 0, 0))
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"PYTHONPATH": str(ROOT)} | environment
    call = [sys.executable, "-m", "dflash_convert", *arguments]
    child = subprocess.Popen(call, env=env, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 4096):
            text += chunk
    except OSError:  # the other end is closed
        pass
    child.wait(60)
    os.close(master)
    return text.decode()


def test_colours_only_on_a_terminal_and_not_with_no_color() -> None:
    call = ("package", "--check", "nowhere")
    assert "\x1b[31mERROR" in on_a_terminal(*call, TERM="xterm")
    assert "\x1b" not in on_a_terminal(*call, TERM="xterm", NO_COLOR="1")
    done = run(*call)
    assert "\x1b" not in done.stderr
    assert done.stderr.startswith("ERROR nowhere is not a package")


def test_progress_only_on_a_terminal(tmp_path: Path, fixtures: Path) -> None:
    pair = fixtures / "tiny-js"
    source = ("convert", str(pair / "drafter"), "--target-model-dir", str(pair / "target"))
    call = (*source, "-o", str(tmp_path), "--force")
    shown = on_a_terminal(*call, TERM="xterm")
    assert re.search(r"converting: +\d+ % \|.*weights", shown)
    assert "converting:" not in on_a_terminal(*call, "-q", TERM="xterm")
    assert "converting:" not in run(*call).stderr

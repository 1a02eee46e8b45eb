"""What the shell offers at the end of a line, by click's own protocol."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from dflash_convert.cli import COMMANDS, cli

DASH = "dflash-convert"


def offered(line: str) -> set[tuple[str, str]]:
    """(type, value) of what is offered for the last word of a line, which may be empty."""
    *words, last = line.split(" ")
    found = ShellComplete(cli, {}, DASH, "_DFLASH_CONVERT_COMPLETE").get_completions(words, last)
    return {(item.type, item.value) for item in found}


def plain(line: str) -> set[str]:
    return {value for _, value in offered(line)}


FILE = {("file", "x/y")}


def test_the_first_word() -> None:
    assert plain("") == set(COMMANDS)
    assert plain("va") == {"validate"}
    assert offered("./x") == {("file", "./x")}, "the bare command takes a drafter"
    assert "--version" in plain("--")


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("convert d -t q4_", {"q4_0", "q4_1", "q4_k_m", "q4_k_s"}),
        ("convert d -t q8_0,Q5_K", {"q8_0,Q5_K_M", "q8_0,Q5_K_S"}),
        ("x/y --outtype q8", {"q8_0"}),
        ("inspect d -t bf", {"bf16"}),
        ("quantize a.gguf b.gguf q6", {"q6_k"}),
        ("quantize a.gguf b.gguf q4_0 --tensor-type ffn=q6", {"ffn=q6_k"}),
        ("quantize a.gguf b.gguf q4_0 --output-tensor-type q8", {"q8_0"}),
        ("validate a.gguf b.gguf --set co", {"code"}),
        ("compare a.gguf --set p", {"prose"}),
        ("tune a.gguf --set r", {"reasoning"}),
        ("validate a.gguf b.gguf --thinking o", {"on", "off"}),
        ("x/y --target-m", {"--target-model-dir"}),
        ("x/y --rope-style n", {"neox", "norm"}),
    ],
)
def test_values(line: str, some: set[str]) -> None:
    assert some <= plain(line)


@pytest.mark.parametrize(
    "line",
    [
        *("convert x/y", "convert d --target-model-dir x/y", "check x/y", "check d x/y", "verify a.gguf x/y"),
        *("verify a.gguf d --target-model-dir x/y", "inspect x/y", "x --target-model-dir x/y", "validate x/y"),
    ],
)
def test_places(line: str) -> None:
    assert offered(line) == FILE


def test_the_shell_s_own_call_works_by_any_path() -> None:
    """As bash makes it: the program by its path, its words and the number of the last in the environment."""
    words = {"COMP_WORDS": f"/usr/bin/{DASH} x/y -t q6", "COMP_CWORD": "3", "_DFLASH_CONVERT_COMPLETE": "bash_complete"}
    call = [sys.executable, "-m", "dflash_convert"]
    done = subprocess.run(call, env={**os.environ, **words}, capture_output=True, text=True, check=True)
    assert "plain,q6_k" in done.stdout.splitlines()

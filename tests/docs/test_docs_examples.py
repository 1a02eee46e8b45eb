"""Every ``console`` block of the README and the pages runs as it stands, with the output that is shown.

``…`` stands for anything, alone on a line for any number of lines.  A page's blocks run in order in one directory that
looks like a checkout.  What differs from a reader's machine: the Hub is a small one on loopback with the bundled pair
under the names of the text; a pair from there runs in a stand-in for llama-server, the bundled pair in the embedded
engine; ``pip install`` plans and installs nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_hub import FakeHub

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELLS = {"sh", "bash", "shell", "zsh"}  # would look like something to paste, and is run by nothing
PROGRAMS = {
    "dflash-convert": f'exec {sys.executable} -m dflash_convert "$@"',
    "pip": f'shift; exec {sys.executable} -m pip install --dry-run --no-deps --no-build-isolation --no-index "$@"',
    "hf": f'exec {Path(sys.executable).parent / "hf"} "$@"',
    "llama-server": f"""[ "$1" = -m ] && [ -f "$2" ] && [ "$3" = -md ] && [ -f "$4" ] && exit 0
exec {sys.executable} -S -E {FAKE} normal "$@" """,
}


class Example(NamedTuple):
    command: str
    output: list[str]


def examples(text: str) -> list[Example]:
    found: list[Example] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        lines = block.splitlines()
        assert lines[0].startswith("$ "), block
        for line in lines:
            if line.startswith("$ "):
                found.append(Example(line[2:], []))
            else:
                found[-1].output.append(line)
    return found


def pattern(lines: list[str]) -> re.Pattern[str]:
    """The lines as one expression, blanks at their ends and empty lines at the end left out."""
    parts = [r"(?:.*\n)*?" if line == "…" else _line(line) for line in lines]
    return re.compile("".join(parts) + r"\n*")


def _line(line: str) -> str:
    words = [r"[^\n]*?".join(map(re.escape, word.split("…"))) for word in line.split()]
    return (
        r"\s*"
        + r"[^\S\n]+".join(words).replace(r"[^\S\n]+[^\n]*?[^\S\n]+", r"[^\S\n]+(?:[^\n]*?[^\S\n]+)?")
        + r"[^\S\n]*\n"
    )


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    pair = ROOT / "fixtures" / "tiny-js"
    with FakeHub() as hub:
        hub.add_directory("z-lab/Qwen3-8B-DFlash-b16", pair / "drafter")
        hub.add_directory("Qwen/Qwen3-8B", pair / "target")
        named = (pair / "target-bf16.gguf").read_bytes().replace(b"Tiny JS target", b"Qwen3-8B".ljust(14))
        hub.add("Qwen/Qwen3-8B-GGUF", {"Qwen3-8B-Q4_K_M.gguf": named})
        yield hub


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(ROOT / name, place)
    for name in ("dflash_convert", "quant"):
        (place / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", place / name)
    (place / "fixtures").symlink_to(ROOT / "fixtures")
    (place / "bin").mkdir()
    for name, body in PROGRAMS.items():
        (place / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / "bin" / name).chmod(0o755)
    return place


def environment(example: Example, place: Path, hub: FakeHub) -> dict[str, str]:
    env = {k: v for k, v in hub.environment(place / "hub").items() if not k.startswith(("MAKE", "PIP_"))}
    env |= {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "DFLASH": "dflash-convert", "PYTHONSAFEPATH": "1"}
    env |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(place / "cache"), "TERM": "dumb"}
    bundled = "fixtures/tiny-js" in example.command or example.command.startswith("make ")
    return env if bundled else env | {"DFLASH_LLAMA_SERVER": str(place / "bin" / "llama-server")}


@pytest.mark.parametrize("page", [p for p in PAGES if "```console" in p.read_text("utf-8")], ids=lambda p: p.stem)
def test_commands_do_what_the_page_shows(page: Path, checkout: Path, hub: FakeHub) -> None:
    text = page.read_text(encoding="utf-8")
    if "make " in text and shutil.which("make") is None:
        pytest.skip("needs make")
    for example in examples(text):
        call = ["/bin/sh", "-c", f"exec 2>&1; {example.command}"]
        env = environment(example, checkout, hub)
        done = subprocess.run(call, cwd=checkout, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{example.command}\n{done.stdout}"
        if "pip" in example.command.split():
            assert re.search(r"^Would install dflash-convert", done.stdout, re.MULTILINE), done.stdout
            assert "does not provide the extra" not in done.stdout
            continue
        assert pattern(example.output).fullmatch(done.stdout), f"{example.command}\nprints\n{done.stdout}"


def test_blocks_that_look_like_a_shells_are_console_blocks() -> None:
    """In the README every command is one that was run."""
    kinds = re.findall(r"^```(\w+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert kinds.count("console") >= 6
    assert not SHELLS & set(kinds)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_pattern_can_fail() -> None:
    shown = ["…", "total … 869 … 4.29 …", "verdict: healthy (…"]
    assert pattern(shown).fullmatch("a\nb\ntotal  1  869  48 %  4.29  yes\nverdict: healthy (869 of 1807)\n")
    assert pattern(shown).fullmatch("total 869 4.29 yes\nverdict: healthy (x\n")
    assert not pattern(shown).fullmatch("a\ntotal  1  868  48 %  4.29  yes\nverdict: healthy (869)\n")
    assert not pattern(shown).fullmatch("total  869  4.29  yes\nverdict: weak (869)\n")
    assert not pattern(["out/a.gguf"]).fullmatch("out/a.gguf\nout/b.gguf\n")


def test_programs_of_the_readme_are_known() -> None:
    """A command that this test does not know how to run is no example."""
    for example in examples((ROOT / "README.md").read_text(encoding="utf-8")):
        assert shlex.split(example.command, comments=True)[0] in {*PROGRAMS, "make"}

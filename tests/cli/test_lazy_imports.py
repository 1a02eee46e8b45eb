"""What holds help, completion and errors under 150 ms: they load no library that takes tens of milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_convert.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"numpy", "gguf", "tokenizers", "huggingface_hub", "sentencepiece", "xllamacpp", "distributed"}


def loaded(*arguments: str, **environment: str) -> tuple[int, set[str]]:
    """Exit code, and which of HEAVY the call has imported."""
    call = [sys.executable, "-X", "importtime", "-m", "dflash_convert", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert len(lines) > 50
    return done.returncode, {line.rpartition("|")[2].strip() for line in lines} & HEAVY


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help(name: str | None) -> None:
    assert loaded(*([name] if name else []), "--help") == (0, set())


def test_version_and_completion() -> None:
    assert loaded("--version") == (0, set())
    words = {"_DFLASH_CONVERT_COMPLETE": "bash_complete", "COMP_WORDS": "dflash-convert va", "COMP_CWORD": "1"}
    assert loaded(**words) == (0, set())
    words["COMP_WORDS"], words["COMP_CWORD"] = "dflash-convert validate --thinking o", "3"
    assert loaded(**words) == (0, set())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nowhere", 2),
        ("nowhere --target-model-dir nowhere", 2),
        ("convert nowhere --target-model-dir nowhere --taps x", 2),
        ("convert --no-such-option", 2),
        ("quantize nowhere.gguf out.gguf q4_0", 3),
        ("migrate nowhere.gguf out.gguf", 3),
        ("head nowhere.gguf nowhere.gguf out.gguf --full", 3),
        ("inspect nowhere", 2),
        ("check nowhere.gguf nowhere.gguf", 2),
        ("verify nowhere.gguf nowhere", 3),
        ("validate nowhere.gguf nowhere.gguf", 3),
        ("diff nowhere.gguf nowhere.gguf", 3),
        ("package nowhere.gguf --out nowhere", 3),
        ("batch nowhere.toml", 3),
    ],
)
def test_mistyped(line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded(*line.split(), PYTHONPATH=str(ROOT)) == (code, set())


def test_no_module_is_imported_by_a_computed_name() -> None:
    """But for the commands, the optional cluster, and the libraries whose versions are shown."""
    using = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "dflash_convert").rglob("*.py")
        if "import_module(" in path.read_text()
    }
    assert using == {"dflash_convert/cli/__init__.py", "dflash_convert/release/cluster.py"}

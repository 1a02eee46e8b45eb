"""A checkpoint directory is a stranger's: nothing in it is imported or run, also when it is the working directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# as the installed console script starts: nothing of the working directory in sys.path
PROGRAM = [
    sys.executable,
    "-c",
    f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, {str(ROOT)!r});"
    "from dflash_convert.cli import main; main()",
]
BAIT = (
    "numpy",
    "json",
    "queue",
    "quant",
    "dflash_convert",
    "sitecustomize",
    "xllamacpp",
    "tokenizers",
    "configuration",
)


@pytest.fixture
def trap(fixtures: Path, tmp_path: Path) -> Path:
    """A drafter's directory with modules that write a file called ran when they are imported."""
    where = tmp_path / "drafter"
    shutil.copytree(fixtures / "tiny-js" / "drafter", where)
    for name in BAIT:
        (where / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    (where / "modeling_dflash.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('modeling')\n")
    return where


def run(trap: Path, *args: object) -> None:
    done = subprocess.run(
        [*PROGRAM, *map(str, args)], cwd=trap, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not (trap.parent / "ran").exists(), (trap.parent / "ran").read_text()


def test_the_trap_works(trap: Path) -> None:
    subprocess.run([sys.executable, "-c", "import numpy"], cwd=trap, check=True)
    assert (trap.parent / "ran").read_text() == "numpy"


def test_convert_with_workers(trap: Path, fixtures: Path) -> None:
    target = fixtures / "tiny-js" / "target"
    run(trap, ".", "--target-model-dir", target, "-t", "q8_0", "--threads", "2", "-o", trap.parent / "x.gguf")


@pytest.mark.engine
def test_validate_and_doctor(trap: Path, fixtures: Path) -> None:
    pytest.importorskip("xllamacpp")
    tiny = fixtures / "tiny-js"
    drafter = trap.parent / "x.gguf"
    run(trap, ".", "--target-model-dir", tiny / "target", "-o", drafter)
    prompts = trap.parent / "one.jsonl"
    prompts.write_text('{"prompt": "let x", "n_predict": 8}\n')
    run(trap, "validate", drafter, tiny / "target-bf16.gguf", "--prompts", prompts, "--quick", "--n-max", "7")
    run(trap, "doctor")

"""Memory stays flat: resident peaks of whole conversions, measured as the sum of every process's own peak.

CI runs the 1.45 GB checkpoint once for each vocabulary; ``DFLASH_LIMITS=all`` (``make limits``) adds the other
types and a checkpoint ten times as large.  Weights are a sparse file of zeros: reading and encoding them takes
the same buffers, and needs no disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALL = os.environ.get("DFLASH_LIMITS") == "all"
LARGEST = {"qwen3": 225, "gemma4": 335}  # MB, what docs/performance.md promises
VOCAB = {"qwen3": 151936, "gemma4": 262144}
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peaks from /proc")

Drafter = Callable[[str, int], Path]
Tell = Callable[[str], None]


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Show a figure in the test's output, passed or not."""

    def line(text: str) -> None:
        with capsys.disabled():
            request.config.get_terminal_writer().line(f"\nlimits: {text}")

    return line


@pytest.fixture
def drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drafter:
    """A DFlash drafter with a real one's shapes (5 layers: 727 M parameters) and the target's vocabulary size."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import make_checkpoint

    def make(target: str, layers: int) -> Path:
        path = tmp_path / f"{target}-{layers}"
        path.mkdir()
        config = make_checkpoint.config(layers, VOCAB[target])
        header, at = {}, 0
        for name, shape in make_checkpoint.shapes(layers).items():
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        (path / "config.json").write_text(json.dumps(config), "utf-8")
        with (path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        return path

    return make


@pytest.fixture
def target(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A target directory around one of the real tokenizers."""

    def make(name: str) -> Path:
        path = tmp_path / f"target-{name}"
        shutil.copytree(shared / "tokenizers" / name, path)
        for file in path.iterdir():
            file.chmod(0o644)
        architecture = "Qwen3ForCausalLM" if name == "qwen3" else "Gemma4ForConditionalGeneration"
        text = {
            "hidden_size": 3840,
            "num_hidden_layers": 48,
            "vocab_size": VOCAB[name],
            "max_position_embeddings": 4096,
        }
        config = {"architectures": [architecture], **text, "text_config": text}
        (path / "config.json").write_text(json.dumps(config), "utf-8")
        return path

    return make


def peaks(root: int, known: dict[int, int]) -> None:
    """Update the resident peak (bytes) of every process in ``root``'s tree."""
    parents: dict[int, int] = {}
    high: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        pid = int(status.parent.name)
        parents[pid], high[pid] = int(fields["PPid"]), int(fields.get("VmHWM", "0").split()[0]) * 1024
    wanted = {root}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    for pid in wanted & set(high):
        known[pid] = high[pid] or known.get(pid, 0)  # an ended process shows none; before exec a child its parent's


def convert(drafter: Path, target: Path, kind: str, output: Path, tell: Tell) -> float:
    """Sum of all processes' peaks in MB of one conversion by two processes."""
    args = [str(drafter), "--target-model-dir", str(target), "-t", kind, "-o", str(output), "-q", "--threads", "2"]
    process = subprocess.Popen([sys.executable, "-m", "dflash_convert", *args], stdout=subprocess.DEVNULL)
    known: dict[int, int] = {}
    while process.poll() is None:
        peaks(process.pid, known)
        time.sleep(0.05)
    assert process.returncode == 0
    assert output.stat().st_size > 10_000_000
    output.unlink()
    assert len(known) == 2, "the program and the worker beside it were seen"
    total = sum(known.values()) / 1e6
    tell(f"{drafter.name} {kind}: peak {total:.0f} MB")
    return total


TYPES = ("bf16", "q8_0", "q4_0", "q4_k_m") if ALL else ("q8_0",)


@pytest.mark.shared
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["qwen3", "gemma4"])
def test_peak_of_a_real_drafters_size(
    name: str,
    kind: str,
    drafter: Drafter,
    target: Callable[[str], Path],
    tmp_path: Path,
    tell: Tell,
) -> None:
    peak = convert(drafter(name, 5), target(name), kind, tmp_path / "x.gguf", tell)
    assert 50 < peak < LARGEST[name]


@pytest.mark.shared
def test_peak_does_not_grow_with_the_checkpoint(
    drafter: Drafter, target: Callable[[str], Path], tmp_path: Path, tell: Tell
) -> None:
    """One layer and three (``make limits``: five and 62, 14 GB): within 16 MB of each other."""
    where = target("qwen3")
    few, many = (5, 62) if ALL else (1, 3)
    small = convert(drafter("qwen3", few), where, "q8_0", tmp_path / "x.gguf", tell)
    large = convert(drafter("qwen3", many), where, "q8_0", tmp_path / "x.gguf", tell)
    assert abs(large - small) < 16

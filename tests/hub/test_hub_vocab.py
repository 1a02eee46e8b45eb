"""A Hub target's tokenizer: the published failure, and where a missing tokenizer.model comes from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import json, sys
from dflash_convert.errors import DflashError
from dflash_convert.hub import resolve_target
from dflash_convert.vocab import load_vocabulary
from dflash_convert.vocab.twin import find_tokenizer_model
try:
    target = resolve_target(sys.argv[1])
    model, notes = find_tokenizer_model(target, sys.argv[3] or None)
    got = load_vocabulary(target.path, vocab_size=int(sys.argv[2]), tokenizer_model=model)
    print(json.dumps({"model": got.model, "pre": got.pre, "size": got.size, "special": dict(got.special),
                      "taken": str(model), "notes": [n.text for n in notes]}))
except DflashError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as fake:
        yield fake


def child(hub: FakeHub, home: Path, target: str, size: int, option: str = "") -> dict[str, Any]:
    command = [sys.executable, "-c", CHILD, target, str(size), option]
    done = subprocess.run(command, env=hub.environment(home), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_gemma_4_without_tokenizer_model(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    """The published failure: no tokenizer.model, and nothing has to be done by hand."""
    folder = fixtures / "tokenizers" / "gemma"
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": {"vocab_size": 385}}
    weights = {"model.safetensors": b"w" * 200_000, "config.json": json.dumps(config).encode()}
    hub.add("google/gemma-4-mini-it", {**contents(folder), **weights})
    got = child(hub, tmp_path, "google/gemma-4-mini-it", 385)
    assert (got["model"], got["size"], got["taken"], got["notes"]) == ("gemma4", 385, "None", [])
    assert got == child(hub, tmp_path, str(folder), 385), "the same from a local directory"
    assert not [r for r in hub.log if r.path.endswith((".safetensors", "tokenizer.model"))]


@pytest.fixture
def bare(fixtures: Path) -> dict[str, bytes]:
    """A SentencePiece target without the file that holds its pieces."""
    files = contents(fixtures / "tokenizers" / "spm-bpe")
    files.pop("tokenizer.model")
    config = json.loads(files["tokenizer_config.json"]) | {"tokenizer_class": "GemmaTokenizer"}
    return {**files, "tokenizer_config.json": json.dumps(config).encode(), "config.json": b"{}"}


def test_the_known_twin(hub: FakeHub, fixtures: Path, tmp_path: Path, bare: dict[str, bytes]) -> None:
    model = (fixtures / "tokenizers" / "spm-bpe" / "tokenizer.model").read_bytes()
    hub.add("owner/target", bare)
    hub.add("google/gemma-3-4b-it", {"tokenizer.model": model}, gate=403)
    hub.add("unsloth/gemma-3-4b-it", {"tokenizer.model": model, "model.safetensors": b"w"})
    got = child(hub, tmp_path, "owner/target", 384)
    assert got["model"] == "llama"
    assert got["notes"] == [
        "the target has no tokenizer.model; taken from unsloth/gemma-3-4b-it (kept in the Hub's cache)"
    ]
    assert got["taken"].startswith(str(tmp_path))
    assert "models--unsloth--gemma-3-4b-it" in got["taken"]
    assert not [r for r in hub.log if r.path.endswith(".safetensors")]


def test_a_twin_with_other_pieces_is_refused(
    hub: FakeHub, fixtures: Path, tmp_path: Path, bare: dict[str, bytes]
) -> None:
    model = (fixtures / "tokenizers" / "spm-unigram" / "tokenizer.model").read_bytes()
    hub.add("owner/target", bare)
    hub.add("google/gemma-3-4b-it", {"tokenizer.model": model})
    got = child(hub, tmp_path, "owner/target", 384)
    assert got["error"] == "TokenizerError"
    assert "350 pieces, but the vocabulary has 384 tokens" in got["text"]


def test_no_place_has_it(hub: FakeHub, tmp_path: Path, bare: dict[str, bytes]) -> None:
    hub.add("owner/target", bare)
    got = child(hub, tmp_path, "owner/target", 384)
    assert got["error"] == "TokenizerError"
    assert "no tokenizer files" in got["text"]


def test_a_local_target_never_asks_the_hub(
    hub: FakeHub, fixtures: Path, tmp_path: Path, bare: dict[str, bytes]
) -> None:
    model = (fixtures / "tokenizers" / "spm-bpe" / "tokenizer.model").read_bytes()
    hub.add("google/gemma-3-4b-it", {"tokenizer.model": model})
    folder = tmp_path / "target"
    folder.mkdir()
    for name, data in bare.items():
        (folder / name).write_bytes(data)
    got = child(hub, tmp_path / "home", str(folder), 384)
    assert got["error"] == "TokenizerError"
    assert hub.log == []
    named = child(hub, tmp_path / "home", str(folder), 384, "google/gemma-3-4b-it")
    assert (named["model"], named["notes"]) == ("llama", ["tokenizer.model from google/gemma-3-4b-it"])
    seen = len(hub.log)
    again = child(hub, tmp_path / "home", str(folder), 384)
    assert again["model"] == "llama", "an earlier run has put the twin into the cache"
    assert len(hub.log) == seen
    assert sorted(path.name for path in folder.iterdir()) == sorted(bare), "nothing is put beside the target's files"


def test_the_option(hub: FakeHub, fixtures: Path, tmp_path: Path, bare: dict[str, bytes]) -> None:
    hub.add("owner/target", bare)
    hub.add("owner/without", {"config.json": b"{}"})
    file = fixtures / "tokenizers" / "spm-bpe" / "tokenizer.model"
    assert child(hub, tmp_path, "owner/target", 384, str(file))["taken"] == str(file)
    assert child(hub, tmp_path, "owner/target", 384, str(file.parent))["taken"] == str(file)
    assert child(hub, tmp_path, "owner/target", 384, "owner/without")["text"] == "owner/without has no tokenizer.model"
    assert child(hub, tmp_path, "owner/target", 384, "./gone.model") == {
        "error": "UsageError",
        "text": "gone.model: no such file",
    }

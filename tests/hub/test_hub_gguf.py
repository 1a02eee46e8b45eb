"""A target that is a GGUF on the Hub: its header comes, its weights stay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub

from dflash_convert.container.reader import open_gguf
from dflash_convert.hub_gguf import models_of

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = 6 << 20


@pytest.fixture
def hub(fixtures: Path) -> Iterator[FakeHub]:
    data = (fixtures / "tiny-js" / "target-bf16.gguf").read_bytes()
    with FakeHub() as fake:
        files = {"README.md": b"#", "config.json": b"{}", "mmproj-F16.gguf": b"GGUF", "tiny-BF16.gguf": data}
        fake.add("owner/tiny-GGUF", {**files, "tiny-Q8_0.gguf": b"GGUF"})
        fake.add("owner/none-GGUF", {"README.md": b"#", "mmproj-F16.gguf": b"GGUF"})
        yield fake


def command(hub: FakeHub, home: Path, *args: str | Path, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "dflash_convert", *map(str, args)]
    done = subprocess.run(call, env=hub.environment(home, **env), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


def test_only_the_header_is_fetched(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    """The file ends in a hole of zeros, so that its weights would be seen."""
    pair, out = fixtures / "tiny-js", tmp_path / "a.gguf"
    gguf = open_gguf(pair / "target-bf16.gguf")
    grown = large_target(pair / "target-bf16.gguf", tmp_path / "large.gguf")
    hub.add("owner/large-GGUF", {"large-BF16.gguf": grown.read_bytes()})
    done = command(
        hub, tmp_path / "home", pair / "drafter", "--target-model-dir", "owner/large-GGUF", "-t", "q8_0", "-o", out
    )
    sent = sum(request.sent for request in hub.log if request.path.endswith(".gguf"))
    assert gguf.data_offset < sent <= 1 << 20
    assert grown.stat().st_size > WEIGHTS
    made = open_gguf(out)
    assert made.get("dflash_convert.target.repository") == "owner/large-GGUF"
    assert made.get("dflash_convert.target.revision") == hub.repos["owner/large-GGUF"].refs["main"]
    assert made.get("dflash_convert.target.name") == "large"
    assert made.get("tokenizer.ggml.tokens") == gguf.get("tokenizer.ggml.tokens")
    assert "large-BF16.gguf, key by key" in done.stderr


def large_target(source: Path, path: Path) -> Path:
    """``source`` with one more tensor of WEIGHTS bytes."""
    from dflash_convert.container.types import TensorType
    from dflash_convert.container.writer import Entry, GgufOutput, layout

    gguf = open_gguf(source)
    entries = [Entry(info.name, info.shape, info.type) for info in gguf.tensors.values()]
    entries.append(Entry("large.weight", (WEIGHTS // 128, 32), TensorType.F32))
    with GgufOutput(path, entries, layout(list(gguf.keys.values()), entries)) as output:
        output.commit()
    return path


def test_every_command_takes_the_repository(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    pair, home = fixtures / "tiny-js", tmp_path / "home"
    done = command(hub, home, "check", pair / "drafter", "owner/tiny-GGUF")
    assert "tiny-BF16.gguf stands for the target: the first of 2 GGUFs there" in done.stderr
    call = ("inspect", pair / "drafter", "--memory", "--json", "--target-model-dir")
    shown = json.loads(command(hub, home, *call, "owner/tiny-GGUF/tiny-BF16.gguf").stdout)
    assert shown["memory"]["target"]["weights_mib"] > 3
    assert shown["tokenizer"]["pre_source"] == "tiny-BF16.gguf"


def test_what_is_not_there_is_named(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    drafter, home = fixtures / "tiny-js" / "drafter", tmp_path / "home"
    done = command(hub, home, "check", drafter, "owner/none-GGUF", code=8)
    assert "no config.json there, so it is not a target" in done.stderr
    done = command(hub, home, "check", drafter, "owner/tiny-GGUF/other.gguf", code=8)
    assert "owner/tiny-GGUF has no other.gguf" in done.stderr
    done = command(hub, home, "check", drafter, "owner/tiny-GGUF/tiny-Q8_0.gguf", code=3)
    assert "4 bytes are too few" in done.stderr
    done = command(hub, home, "check", drafter, "owner/tiny-GGUF", code=8, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in done.stderr


def test_offline_a_downloaded_file_is_used(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    fetch = "import huggingface_hub as h; h.hf_hub_download('owner/tiny-GGUF', 'tiny-BF16.gguf')"
    home = tmp_path / "home"
    subprocess.run([sys.executable, "-c", fetch], env=hub.environment(home), check=True, timeout=60)
    drafter = fixtures / "tiny-js" / "drafter"
    for spec in ("owner/tiny-GGUF", "owner/tiny-GGUF/tiny-BF16.gguf"):
        assert "the cache's copy is used" in command(hub, home, "check", drafter, spec, HF_HUB_OFFLINE="1").stderr


def test_which_files_are_models() -> None:
    names = ["mmproj-a.gguf", "a-Q4_0-00002-of-00002.gguf", "a-Q4_0-00001-of-00002.gguf", "a.imatrix.gguf", "b.gguf"]
    names += ["dflash-a-Q8_0.gguf", "README.md", "sub/c.gguf", "lora-x.gguf"]
    assert models_of(names) == ["a-Q4_0-00001-of-00002.gguf", "b.gguf", "sub/c.gguf"]

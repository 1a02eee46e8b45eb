"""The command line on Hub ids: conversion without target weights, and swapped arguments before any download."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub

from dflash_convert.container.reader import open_gguf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hub(fixtures: Path) -> Iterator[FakeHub]:
    pair = fixtures / "tiny-js"
    with FakeHub() as fake:
        for name in ("drafter", "target"):
            fake.add(f"owner/{name}", {p.name: p.read_bytes() for p in (pair / name).iterdir()})
        config = json.loads((pair / "target" / "config.json").read_text())
        fake.add(
            "owner/whole",
            {p.name: p.read_bytes() for p in (pair / "target").iterdir()}
            | {"model.safetensors": b"w" * 200_000, "config.json": json.dumps(config).encode()},
        )
        yield fake


def run(hub: FakeHub, home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dflash_convert", *args]
    env = hub.environment(home)
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)


def weights_fetched(hub: FakeHub, repo: str) -> list[str]:
    return [r.path for r in hub.log if repo in r.path and r.path.endswith(".safetensors") and r.method == "GET"]


def test_a_hub_pair_converts_without_the_targets_weights(hub: FakeHub, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run(hub, tmp_path / "home", "owner/drafter", "--target-model-dir", "owner/whole", "-o", str(out))
    assert done.returncode == 0, done.stderr
    gguf = open_gguf(out)
    assert gguf.get("dflash_convert.drafter.repository") == "owner/drafter"
    assert gguf.get("dflash_convert.target.repository") == "owner/whole"
    assert gguf.get("dflash_convert.target.revision") == hub.repos["owner/whole"].refs["main"]
    assert gguf.get("general.name") == "Drafter"
    assert weights_fetched(hub, "owner/drafter")
    assert weights_fetched(hub, "owner/whole") == []


def test_check_takes_hub_ids(hub: FakeHub, fixtures: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run(hub, home, "check", "owner/drafter", "owner/whole")
    assert done.returncode == 0, done.stderr
    assert "fits owner/whole" in done.stderr
    assert weights_fetched(hub, "owner/whole") == []
    config = json.loads((fixtures / "tiny-js" / "target" / "config.json").read_text()) | {"num_hidden_layers": 8}
    files = {p.name: p.read_bytes() for p in (fixtures / "tiny-js" / "target").iterdir()}
    hub.add("owner/deeper", files | {"config.json": json.dumps(config).encode()})
    done = run(hub, home, "check", "owner/drafter", "owner/deeper")
    assert done.returncode == 4
    assert "owner/drafter and owner/deeper do not belong together: target-depth" in done.stderr
    assert run(hub, home, "check", "owner/drafter", str(tmp_path / "none")).returncode == 2


def test_a_target_as_the_drafter_is_refused_before_its_weights(hub: FakeHub, tmp_path: Path) -> None:
    done = run(hub, tmp_path / "home", "owner/whole", "--target-model-dir", "owner/drafter")
    assert done.returncode == 3
    assert "Qwen3ForCausalLM is a Qwen 3 target model, not a DFlash drafter; did you swap the arguments?" in done.stderr
    assert "Traceback" not in done.stderr
    assert weights_fetched(hub, "owner/whole") == []

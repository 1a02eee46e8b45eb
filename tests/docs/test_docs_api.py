"""The examples of docs/api.md run as they stand, in order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "engine" / "fake_llama_server.py"


def test_examples_run(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 9
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" normal "$@"\n')
    server.chmod(0o755)
    monkeypatch.setenv("DFLASH_LLAMA_SERVER", str(server))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").symlink_to(fixtures)
    names: dict[str, object] = {"__name__": "examples"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"docs/api.md, example {number}", "exec"), names)
    assert (tmp_path / "out/release/packages/tiny-js/manifest.json").is_file()

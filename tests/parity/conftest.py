"""The reference's checkpoints, written once per session, and what llama.cpp b11434 makes of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def case(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """case('dflash_qwen3') -> a directory with drafter/ and target/."""
    spec = importlib.util.spec_from_file_location("checkpoints", shared / "parity" / "checkpoints.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("parity")

    def write(name: str) -> Path:
        if not (root / name).is_dir():
            module.write_case(name, root / name, shared / "tokenizers")
        return root / name

    return write


@pytest.fixture(scope="session")
def expected(shared: Path) -> Callable[[str], dict[str, Any]]:
    def read(name: str) -> dict[str, Any]:
        return json.loads((shared / "parity" / "expected" / f"{name}.json").read_text())["outputs"]

    return read

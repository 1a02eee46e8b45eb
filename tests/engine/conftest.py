from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_llama_server.py")


@pytest.fixture
def fake_server(tmp_path: Path) -> Callable[[str], Path]:
    """fake_server('oom') -> an executable that behaves like a llama-server in that mode."""

    def make(mode: str) -> Path:
        path = tmp_path / f"llama-server-{mode}"
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{FAKE}" {mode} "$@"\n')
        path.chmod(0o755)
        return path

    return make

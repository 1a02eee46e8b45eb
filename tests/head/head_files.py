"""Where the generators and the trained pair are found."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PAIR = FIXTURES / "tiny-js"
TARGET = PAIR / "target-bf16.gguf"

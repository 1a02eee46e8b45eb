"""Where the generators and the trained pair are found."""

from __future__ import annotations

import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
sys.path.insert(0, str(FIXTURES))
PAIR = FIXTURES / "tiny-js"
TARGET = PAIR / "target-bf16.gguf"

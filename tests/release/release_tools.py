"""What the release tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("Q8_0", "Q4_0")


@dataclass(frozen=True)
class Done:
    """An ended child process."""

    code: int
    out: str
    err: str


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below ``directory`` with its bytes."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}

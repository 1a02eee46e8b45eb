"""The reference data beside the checkout: which parts of them a test may ask for, and why it cannot have them."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared"
PARTS = ("tokenizers", "pairs")


def missing(place: Path = SHARED, parts: tuple[str, ...] = PARTS) -> str | None:
    """The reason to skip a test that needs ``parts`` of ``place``; None when they are there."""
    gone = [part for part in parts if not (place / part).exists()]
    return f"needs the reference data in ../shared ({', '.join(gone)} missing)" if gone else None

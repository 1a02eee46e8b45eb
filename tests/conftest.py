"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data beside the checkout; required in CI, otherwise a reason to skip."""
    path = ROOT.parent / "shared"
    if not (path / "parity" / "checkpoints.py").is_file():
        if os.environ.get("CI") == "true":
            pytest.fail(f"the reference data is missing: {path}")
        pytest.skip("needs the reference data in ../shared")
    return path

"""Fixtures shared by all tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"


os.environ["DFLASH_TOKENIZER_CACHE"] = "off"  # for the programs that tests start, too


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


@pytest.fixture(scope="session")
def unprivileged() -> Callable[[], None]:
    """For subprocess's preexec_fn: takes the right to write where the mode forbids it away from root."""
    override, bound, drop = 1, 23, 24  # CAP_DAC_OVERRIDE, PR_CAPBSET_READ, PR_CAPBSET_DROP
    libc = ctypes.CDLL(None)

    def lower() -> None:
        if libc.prctl(bound, override, 0, 0, 0) == 1 and os.geteuid() == 0:
            assert libc.prctl(drop, override, 0, 0, 0) == 0

    return lower

"""The glossary is made from the package's terms, and holds the words that a newcomer meets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dflash_convert.glossary import TERMS, plain

ROOT = Path(__file__).resolve().parents[2]
WANTED = {"target", "drafter", "tap", "block", "anchor", "n-max", "acceptance", "mean-accepted-length", "b11434"}


def test_the_page_is_current() -> None:
    call = [sys.executable, str(ROOT / "docs" / "make_glossary.py"), "--check"]
    assert subprocess.run(call, check=False).returncode == 0, "run: python docs/make_glossary.py"


def test_terms() -> None:
    anchors = [term.anchor for term in TERMS]
    assert len(set(anchors)) == len(anchors)
    assert set(anchors) >= WANTED
    for term in TERMS:
        assert not set("`*[]") & set(plain(term)), term.anchor

"""What the scripts that make a page share: they find the checkout's package, and write or compare."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))


def write_page(name: str, text: str) -> int:
    """Write the page ``name``; with --check on the command line only compare, word for word: line breaks may differ
    between versions of click. The exit code: 1 for a page that is out of date."""
    path = DOCS / name
    if "--check" in sys.argv[1:]:
        return 0 if path.is_file() and path.read_text(encoding="utf-8").split() == text.split() else 1
    path.write_text(text, encoding="utf-8", newline="\n")
    return 0

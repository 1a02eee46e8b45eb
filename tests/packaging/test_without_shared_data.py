"""A clone has no ../shared: what needs it is skipped with the reason, and nothing else names the place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import shared_data
from import_graph import ROOT


@pytest.mark.parametrize(
    ("there", "told"),
    [((), "tokenizers, pairs missing"), (("tokenizers",), "(pairs missing)"), (shared_data.PARTS, None)],
)
def test_the_reason_names_what_is_missing(there: tuple[str, ...], told: str | None, tmp_path: Path) -> None:
    for part in there:
        (tmp_path / part).mkdir()
    reason = shared_data.missing(tmp_path)
    assert reason is None if told is None else told in str(reason)
    assert shared_data.missing(tmp_path / "nowhere", ("bug-reports.md",)) is not None


def test_one_place_knows_where_the_data_are() -> None:
    """A test that found its own way there would fail where they are missing."""
    own = Path(__file__).name
    found = [
        path.name
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != own and re.search(r"[\"'](\.\./)?shared[\"'/]", path.read_text("utf-8"))
    ]
    assert found == ["shared_data.py"]

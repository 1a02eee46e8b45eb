"""The pages hold together: one index and one navigation of all, links that lead somewhere, a cure for everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs_pairs import names_in_code

from dflash_convert import errors
from dflash_convert.engine import failures
from dflash_convert.measure import speed
from dflash_convert.validation import result

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path.name for path in DOCS.glob("*.md")}
CURES = (DOCS / "troubleshoot.md").read_text(encoding="utf-8")


def first_cells(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    text = CURES.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        assert row[-1].strip() or row[0].strip() == "0", f"{row[0]} has no cure"
    return {name for row in rows for name in re.findall(r"[\w-]+(?: \w+)*", row[0])}


def test_every_exit_code_has_a_cure() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.DflashError)}
    assert first_cells("By exit code") == {str(code) for code in codes | {0, 130}}


def test_every_finding_has_a_cure() -> None:
    assert first_cells("By finding") == names_in_code()


def test_every_failure_of_the_engine_has_a_cure() -> None:
    constants = {value for name, value in vars(failures).items() if name.isupper() and isinstance(value, str)}
    kinds = {kind for kind in constants if re.fullmatch(r"[a-z-]+", kind)}
    assert first_cells("When llama.cpp fails") == kinds
    assert {cause.kind for cause in failures.CAUSES} <= kinds


def test_every_verdict_that_wants_something_done_is_there() -> None:
    wanted = {result.WEAK, result.BROKEN, speed.SLOWER, speed.NO_GAIN, speed.DISTURBED, speed.NOT_MEASURED}
    assert first_cells("By verdict") == wanted


def test_every_page_is_in_the_index_and_the_navigation() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert listed == PAGES - {"index.md"}
    assert navigation() == PAGES


def navigation() -> set[str]:
    def pages(entry: Any) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        return {page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)}

    return pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def headings(text: str) -> set[str]:
    """Anchors that GitHub gives to headings, and those that the page sets."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), f"{link} leads nowhere"
        assert not anchor or anchor in headings(target.read_text(encoding="utf-8")), f"{link}: no such section"


def test_the_build_number_is_explained_where_it_is_named() -> None:
    """Pages that speak of it link to the glossary; the pages for contributors and the surveys may not need to."""
    free = {"glossary.md", "new-llama-cpp.md", "adding-a-family.md", "bug-reports.md", "cli.md", "contract.md"}
    for path in [DOCS / name for name in PAGES - free] + [ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        assert "b11434" not in text or "glossary.md#b11434" in text, path


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs-material")
    call = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for page in PAGES - {"index.md"}:
        assert (tmp_path / "site" / page.removesuffix(".md") / "index.html").is_file(), page
    loaded = re.compile(r"<(?:script|img|iframe)[^>]* src=\"https?:|<link[^>]*rel=\"stylesheet\"[^>]*href=\"https?:")
    for path in (tmp_path / "site").rglob("*.html"):
        assert not loaded.search(path.read_text(encoding="utf-8")), f"{path.name} loads something from elsewhere"

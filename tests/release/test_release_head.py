"""A package tells what a reduced head kept, by what text, and where its rows are from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from release_tools import tree

from dflash_convert.cli import main
from dflash_convert.container.reader import open_gguf
from dflash_convert.release.manifest import verify_manifest
from dflash_convert.release.package import Package, PackageOptions, build_package


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("texts")
    files = [place / "code.txt", place / "a|b.txt"]
    files[0].write_text("const items = [1, 2, 3];\n" * 800)
    files[1].write_text("function add(a, b) { return a + b; }\n" * 800)
    return files


@pytest.fixture(scope="module")
def made(
    ggufs: list[Path], texts: list[Path], fixtures: Path, target_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Package:
    """The drafter as it is, and in one type with 400 rows."""
    pair, place = fixtures / "tiny-js", tmp_path_factory.mktemp("headed")
    call = ["convert", pair / "drafter", "--target-model-dir", pair / "target", "--target-name", "tiny-js", "-o", place]
    head = ["--keep", 400, *(word for text in texts for word in ("--text", text))]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in (*call, "-t", "q8_0", "--target-gguf", target_gguf, *head)])
    assert ended.value.code == 0
    files = [*ggufs, place / "dflash-tiny-js-Q8_0-V400.gguf"]
    return build_package(files, place / "pkg", PackageOptions(license="mit"))


def test_the_card_says_what_was_kept(made: Package, target_gguf: Path, texts: list[Path]) -> None:
    card = (made.directory / "README.md").read_text(encoding="utf-8")
    section = card.split("## Its own output head\n\n")[1].split("\n## ")[0]
    matrix = open_gguf(target_gguf).data("output.weight").tobytes()
    ranking = hashlib.sha256(b"".join(text.read_bytes() for text in texts)).hexdigest()
    assert section.startswith(
        "`dflash-tiny-js-Q8_0-V400.gguf` has an output head of its own with rows for 400 of 512 tokens, those of the "
        f"target `target-bf16.gguf` (SHA-256 of its matrix `{hashlib.sha256(matrix).hexdigest()}`). "
        f"Kept were the tokens most frequent in code.txt, a_b.txt (SHA-256 `{ranking}`), which cover 100.00 % of a "
        "held-out part of it (code 100.00 %, a_b 100.00 %).\n\nA token without a row is never drafted."
    )
    assert card.count("`dflash-tiny-js-Q4_0.gguf`") == 1  # it has no head of its own


def test_the_manifest_says_the_same_and_is_held_against_the_file(made: Package) -> None:
    entries = {entry["path"]: entry.get("head") for entry in made.manifest["files"]}
    head = entries["dflash-tiny-js-Q8_0-V400.gguf"]
    assert (head["rows"], head["vocabulary"], head["source"]) == (400, 512, "target-bf16.gguf")
    assert set(head["kinds"]) == {"code", "a|b"}
    assert entries["dflash-tiny-js-Q8_0.gguf"] is None
    assert "README.md" in tree(made.directory)
    assert verify_manifest(made.directory) == []
    manifest = made.directory / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"rows": 400', '"rows": 399'))
    assert any("its head is" in str(problem) for problem in verify_manifest(made.directory))

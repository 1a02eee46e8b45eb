"""compare finds a drafter and its reduced sibling among the candidates, by what ``head`` wrote into the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.cli import main
from dflash_convert.contest.candidates import NOTHING, parse
from dflash_convert.contest.pruned import pairs

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "fixtures" / "tiny-js" / "target-bf16.gguf"


@pytest.fixture
def reduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    """reduce(drafter, rows) -> the same with a head of so many rows"""

    def run(source: Path, rows: int) -> Path:
        ranking = tmp_path / "ranking.txt"
        ranking.write_text("".join(f"{i}\n" for i in range(512)))
        out = tmp_path / f"{source.stem}-V{rows}.gguf"
        with pytest.raises(SystemExit) as ended:
            main(["head", *map(str, (source, TARGET, out)), "--keep", str(rows), "--ranking", str(ranking)])
        assert ended.value.code == 0, capsys.readouterr().err
        capsys.readouterr()
        return out

    return run


def test_siblings_are_known_by_their_keys(drafter: Path, reduce: Callable[..., Path], tmp_path: Path) -> None:
    large, small = reduce(drafter, 400), reduce(drafter, 300)
    renamed = large.rename(tmp_path / "dflash-something-else.gguf")

    def found(*words: str) -> list[tuple[int, int]]:
        return pairs([NOTHING, *map(parse, words)])

    assert found(str(drafter), str(renamed)) == [(2, 1)]
    assert found(str(small), str(renamed), str(drafter)) == [(1, 3), (2, 3)]
    assert found(str(small), str(renamed)) == [(1, 2)]
    assert found(str(drafter), f"{renamed},n-max=3") == []
    assert found(str(drafter), f"{drafter}+ngram-mod") == []


def test_another_encoding_is_no_sibling(drafter: Path, reduce: Callable[..., Path], tmp_path: Path) -> None:
    other = tmp_path / "dflash-other.gguf"
    with pytest.raises(SystemExit) as ended:
        main(["quantize", str(drafter), str(other), "q4_0", "--allow-requantize"])
    assert ended.value.code == 0
    assert pairs([parse(str(other)), parse(str(reduce(drafter, 400)))]) == []


def test_compare_says_what_is_left(
    played: Callable[..., Any], reduce: Callable[..., Path], drafter: Path, tmp_path: Path
) -> None:
    lines = [f'{{"prompt": "{i}", "n_predict": 31, "set": "{"ab"[i % 2]}"}}' for i in range(4)]
    (found,) = played("compare", reduce(drafter, 400), "--json", lines=lines).json["net"]
    assert (found["drafter"], found["beside"]) == (f"{drafter.stem}-V400", drafter.stem)
    assert {part["kind"] for part in found["by_kind"]} == {"a", "b"}
    page = tmp_path / "page.html"
    told = played("compare", reduce(drafter, 300), "--html", page, lines=lines)
    assert told.code == 0, told.err
    assert f"net: {drafter.stem}-V300 beside {drafter.stem}: no difference beyond noise: mean length" in told.out
    assert f"{drafter.stem}-V300 beside {drafter.stem}: no difference" in page.read_text(encoding="utf-8")
    assert played("compare", "ngram-simple", "--json", lines=lines).json["net"] == []

"""--force replaces outputs, never what the same command reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dflash_convert.cli import main

CALLS = {
    "the target's GGUF": "drafter --target-model-dir target.gguf -t bf16 -o target.gguf",
    "the head's target": "drafter --target-model-dir target --target-gguf target.gguf --full -t q8_0 -o target.gguf",
    "a ranking": "drafter --target-model-dir target.gguf --keep 64 --only-ranked --ranking ranking.txt -o ranking.txt",
    "the target's tokenizer": "drafter --target-model-dir target -t q8_0 -o target/tokenizer.json",
    "the drafter's weights": "drafter --target-model-dir target -t q8_0 -o drafter/model.safetensors",
    "head, its ranking": "head d.gguf target.gguf ranking.txt --keep 64 --only-ranked --ranking ranking.txt",
    "head, its target": "head d.gguf target.gguf target.gguf --full",
    "validate, the drafter": "validate d.gguf target.gguf --quick --html d.gguf",
    "validate, the prompts": "validate d.gguf target.gguf --prompts p.jsonl --quick --save-reference p.jsonl",
    "compare, a candidate": "compare target.gguf d.gguf,n-max=3 --html d.gguf",
    "compare, the target": "compare target.gguf d.gguf --preset target.gguf",
    "tune, the prompts": "tune target.gguf d.gguf --prompts p.jsonl --html p.jsonl",
    "an importance matrix": "quantize d.gguf m.gguf q4_0 --imatrix m.gguf",
}


@pytest.fixture
def place(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pair = fixtures / "tiny-js"
    for name in ("drafter", "target"):
        shutil.copytree(pair / name, tmp_path / name)
    for source, name in (("target-bf16.gguf", "target.gguf"), ("prompts.jsonl", "p.jsonl")):
        shutil.copy(pair / source, tmp_path / name)
    (tmp_path / "ranking.txt").write_text("\n".join(map(str, range(10, 100))))
    monkeypatch.chdir(tmp_path)
    assert code_of("drafter --target-model-dir target -t q8_0 -o d.gguf -q") == 0
    shutil.copy("d.gguf", "m.gguf")
    return tmp_path


def code_of(line: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(line.split())
    return left.value.code


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("validate d.gguf target.gguf --quick --save r.json --html ./r.json", "--html and --save"),
        (
            "validate d.gguf target.gguf --save r.json --save-reference here/r.json",
            "--save and --save-reference",
        ),
        ("compare target.gguf d.gguf --preset r.json --html r.json", "--preset and --html"),
    ],
)
@pytest.mark.parametrize("force", ["", " --force"])
def test_no_output_replaces_another(
    line: str, options: str, force: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("here").symlink_to(".")
    before = contents(place)
    assert code_of(line + force) == 2
    assert f"{options} are both " in capsys.readouterr().err
    assert contents(place) == before


def test_no_input_is_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(place)
    for what, line in CALLS.items():
        assert code_of(f"{line} --force") == 9, what
        assert "input" in capsys.readouterr().err, what
        assert contents(place) == before, what

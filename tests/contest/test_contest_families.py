"""Two drafters of really different families, both trained for one target, side by side in the embedded llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.cli import main
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.engine import embedded
from dflash_convert.pairing import check, open_pair
from dflash_convert.target import Target

ROOT = Path(__file__).resolve().parents[2]
PAIR = ROOT / "fixtures" / "tiny-js"
TARGET = PAIR / "target-bf16.gguf"


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The DFlash drafter and the EAGLE-3 head of fixtures/train_eagle3.py, as bf16."""
    place, found = tmp_path_factory.mktemp("families"), []
    for source in (PAIR / "drafter", PAIR / "eagle3"):
        options = Options(("bf16",), target_name="tiny-js")
        made = prepare(Source(source), Target.read(PAIR / "target"), options)
        found += made.default_paths(place)
        write(made, found[-1:], threads=1)
    return found[0], found[1]


def test_the_head_is_small_and_fits_without_a_finding(drafters: tuple[Path, Path]) -> None:
    assert (PAIR / "eagle3" / "model.safetensors").stat().st_size < 1_000_000
    assert drafters[1].name == "eagle3-tiny-js-BF16.gguf"
    assert [f for f in check(*open_pair(drafters[1], TARGET)) if f.severity != "note"] == []


@pytest.mark.engine
@pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")
def test_both_families_accept_what_they_are_known_to(
    drafters: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts of the embedded build: a head whose rows, taps or norms came out wrong accepts next to nothing."""
    dflash, eagle = drafters
    options = ["--prompts", PAIR / "prompts.jsonl", "-t", 1, "--fresh", "--json"]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in ("compare", TARGET, dflash, f"{eagle},n-max=7", *options)])
    assert not end.value.code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["refused"] == []
    _, one, other = document["work"][0]["candidates"]
    assert (one["name"], one["methods"]) == ("dflash-tiny-js-BF16", ["draft-dflash"])
    assert (other["name"], other["methods"]) == ("eagle3-tiny-js-BF16", ["draft-eagle3"])
    assert (one["accepted"], one["drafted"]) == (869, 1811)
    assert (other["accepted"], other["drafted"]) == (966, 1176)
    pairs = list(zip(one["acceptance_by_position"], other["acceptance_by_position"], strict=True))
    assert len(pairs) == 7
    assert all(eagle > dflash for dflash, eagle in pairs), "it sees its own drafts, a block does not"

"""compare and tune on the trained pair in the embedded llama.cpp: counts, refusals, kept runs, presets, width."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dflash_convert import conversion as convert
from dflash_convert.contest import trees
from dflash_convert.contest.trees import Estimate
from dflash_convert.engine import embedded
from dflash_convert.forward.tree import Lengths
from dflash_convert.target import Target

pytestmark = [pytest.mark.engine, pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")]
ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "fixtures" / "tiny-js" / "target-bf16.gguf"
LONG = ("--prompts", ROOT / "fixtures" / "tiny-js" / "prompts.jsonl", "-t", "1")
SHORT = (*LONG, "--n-predict", "16")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def cli(*args: object) -> Ran:
    command = [sys.executable, "-m", "dflash_convert", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def drafters(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pair = fixtures / "tiny-js"
    types = ("bf16", "q8_0")
    conversion = convert.prepare(
        convert.Source(pair / "drafter"), Target.read(pair / "target"), convert.Options(types, target_name="tiny-js")
    )
    paths = conversion.default_paths(tmp_path_factory.mktemp("contest"))
    convert.write(conversion, paths, threads=1)
    return dict(zip(types, paths, strict=True))


@pytest.fixture(scope="module")
def compared(drafters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    keep = tmp_path_factory.mktemp("keep")
    ran = cli(
        "compare", TARGET, drafters["bf16"], f"{drafters['q8_0']},n-max=3", "ngram-mod", *LONG, "--keep", keep, "--json"
    )
    assert ran.code == 0, ran.err
    return json.loads(ran.out), keep


def test_every_candidates_acceptance_is_its_known_figure(compared: tuple[dict[str, Any], Path]) -> None:
    """The same counts as validate gives: drafting does not depend on who asks."""
    rows = {each["name"]: each for each in compared[0]["work"][0]["candidates"]}
    assert list(rows) == ["no drafter", "dflash-tiny-js-BF16", "dflash-tiny-js-Q8_0", "ngram-mod"]
    assert (rows["dflash-tiny-js-BF16"]["accepted"], rows["dflash-tiny-js-BF16"]["drafted"]) == (869, 1811)
    assert rows["dflash-tiny-js-Q8_0"]["n_max"] == 3
    assert rows["no drafter"]["drafted"] == 0
    assert 3.0 < rows["dflash-tiny-js-Q8_0"]["mean_length"] < rows["dflash-tiny-js-BF16"]["mean_length"]


def test_kept_runs_are_not_made_again(compared: tuple[dict[str, Any], Path], drafters: dict[str, Path]) -> None:
    first, keep = compared
    candidates = (drafters["bf16"], f"{drafters['q8_0']},n-max=3", "ngram-mod")
    again = cli("compare", TARGET, *candidates, *LONG, "--keep", keep, "--json")
    assert json.loads(again.out) == first
    assert ", round " not in again.err
    damaged = next(iter(sorted(keep.iterdir())))
    damaged.write_text("{")
    repaired = cli("compare", TARGET, *candidates, *LONG, "--keep", keep, "--json")
    assert repaired.err.count(", round ") == 1


def test_trees_are_estimated_beside_the_chain_that_ran(
    compared: tuple[dict[str, Any], Path], drafters: dict[str, Path]
) -> None:
    first, keep = compared
    candidates = (drafters["bf16"], f"{drafters['q8_0']},n-max=3", "ngram-mod")
    ran = cli("compare", TARGET, *candidates, *LONG, "--keep", keep, "--tree", "16,64", "--json")
    rows = {each["name"]: each for each in json.loads(ran.out)["trees"]}
    assert list(rows) == ["dflash-tiny-js-BF16", "dflash-tiny-js-Q8_0"]
    found = rows["dflash-tiny-js-BF16"]
    measured = next(c for c in first["work"][0]["candidates"] if c["name"] == "dflash-tiny-js-BF16")
    assert found["chain_mean_length"] == pytest.approx(measured["mean_length"], rel=0.03)
    few, many = (tree["mean_length"] for tree in found["trees"])
    assert found["chain_mean_length"] < few < many
    assert found["runnable"] is False


def test_estimates_and_reasons_fit_80_columns() -> None:
    long = "a-drafter-with-a-name-that-has-no-end-" * 3
    found = [
        Estimate(long, Path("a"), Lengths(4.25, {16: 5.0, 1024: 6.1})),
        Estimate(long, Path("b"), reason="the target is too large"),
    ]
    text = trees.lines(found)
    assert max(map(len, text)) <= 80
    assert trees.MARK in text[0]
    assert [line.split()[-1] for line in text[1:4]] == ["4.25", "5.00", "6.10"]


def test_the_table_fits_and_a_preset_names_the_winner(drafters: dict[str, Path], tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    ran = cli(
        *("compare", TARGET, drafters["q8_0"], f"{drafters['q8_0']}+ngram-mod,n-max=3,p-min=0.5", *SHORT),
        *("--fresh", "--parallel", "2", "--preset", preset),
    )
    assert ran.code == 0, ran.err
    assert max(map(len, ran.out.split("\n\n")[0].splitlines())) <= 80
    assert "2 requests at a time" in ran.out
    assert "run it:\n  llama-server -m" in ran.err
    assert preset.read_text().startswith("version = 1\n")
    assert cli("compare", TARGET, "ngram-mod", *SHORT, "--fresh", "--preset", preset).code == 9


def test_what_does_not_fit_is_listed_and_not_run(drafters: dict[str, Path], tmp_path: Path) -> None:
    from make_target import write_target

    other = write_target(ROOT / "fixtures" / "tiny-js" / "target", tmp_path / "other.gguf", "gemma4")
    alone = cli("compare", other, drafters["q8_0"], *SHORT, "--fresh")
    assert alone.code == 4
    assert "does not fit other.gguf" in alone.err
    beside = cli("compare", other, drafters["q8_0"], "ngram-simple", *SHORT, "--fresh", "--json")
    assert beside.code == 0, beside.err
    assert [each["name"] for each in json.loads(beside.out)["refused"]] == ["dflash-tiny-js-Q8_0"]


def test_tune_writes_settings_or_says_why_nothing_pays(drafters: dict[str, Path], tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    ran = cli("tune", TARGET, drafters["q8_0"], *SHORT, "--fresh", "--preset", preset, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["starts"] <= found["exhaustive_starts"]
    assert {each["n_max"] for each in found["measured"]} >= {7, 3, 1}
    assert [each["n_max"] for each in found["predictions"]["dflash-tiny-js-Q8_0"]] == list(range(1, 8))
    assert ("nothing pays" in found["verdict"]) is not found["final"]["pays"]
    assert ("spec-draft-n-max" in preset.read_text()) is found["final"]["pays"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("compare", TARGET), "needs a candidate"),
        (("tune", TARGET), "needs a drafter"),
        (("tune", TARGET, "ngram-mod"), "no settings to tune"),
        (("compare", TARGET, "ngram-mod", "--context", "64k"), "'64k' is not a whole number from 1 to"),
        (("compare", TARGET, "ngram-mod", "--parallel", "x"), "'x' is not a whole number from 1 to 256"),
        (("compare", TARGET, "ngram-mod", "--tree", "99999999"), "'99999999' is not a whole number from 1 to 1,024"),
        (("compare", TARGET, "ngram-mod", "--context", "1M"), "'1M' is not a whole number from 1 to"),
        (("compare", "--targets", TARGET, TARGET, "{}"), "names"),
        (("tune", TARGET, "{}", "--time", "soon"), "not a length of time"),
    ],
)
def test_calls_that_cannot_be(drafters: dict[str, Path], args: tuple[object, ...], words: str) -> None:
    ran = cli(*(str(each).format(drafters["q8_0"]) for each in args), *SHORT, "--fresh")
    assert ran.code == 2, ran.err
    assert words in ran.err

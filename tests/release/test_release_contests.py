"""Results of compare and tune in a package: the card tells them, commands and preset use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.hashing import sha256_of
from dflash_convert.release.contests import contest_summary
from dflash_convert.release.manifest import to_text
from dflash_convert.release.package import PackageOptions, build_package

ALONE = {
    **{"name": "no drafter", "methods": [], "file": None, "n_max": None, "p_min": None, "best": False, "gain": None},
    **{"tokens_per_second": 100.0, "speedup": None, "low": None, "high": None, "mean_length": None},
}


def entry(name: str, file: str | None, speedup: float, **over: Any) -> dict[str, Any]:
    return {
        **ALONE,
        **{"name": name, "file": file, "methods": ["draft-dflash"], "n_max": 4, "gain": "faster", "best": True},
        **{"speedup": speedup, "low": speedup - 0.1, "high": speedup + 0.1, "tokens_per_second": 100 * speedup},
        **{"mean_length": 3.21, **over},
    }


def work(label: str, winner: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return {"label": label, "winner": winner, "pays": True, "advice": "", "candidates": [ALONE, *entries]}


def comparison(files: dict[str, str], *works: dict[str, Any], **over: Any) -> dict[str, Any]:
    listed = [{"path": path, "sha256": digest} for path, digest in files.items()]
    document = {"schema": 1, "kind": "comparison", "engine": "embedded b11434", "hardware": "A chip, 8 cores; CUDA0: X"}
    return {**document, "files": listed, "work": list(works[:1]), "by_kind": list(works[1:]), "refused": [], **over}


@pytest.fixture
def packaged(ggufs: list[Path], target_gguf: Path, tmp_path: Path) -> Any:
    """packaged(document, …) -> manifest, card, preset of both types with these results."""

    def build(*documents: dict[str, Any], **options: Any) -> tuple[dict[str, Any], str, str]:
        paths = []
        for number, document in enumerate(documents):
            paths.append(tmp_path / f"contest{number}.json")
            paths[-1].write_text(json.dumps(document))
        out = tmp_path / "out"
        build_package(ggufs, out, PackageOptions(target_gguf=str(target_gguf), contest=tuple(paths), **options))
        return tuple(  # type: ignore[return-value]
            read((out / name).read_text())
            for name, read in (("manifest.json", json.loads), ("README.md", str), ("llama-server/preset.ini", str))
        )

    return build


def calls(card: str) -> str:
    """The card with each of its commands on one line, as a shell reads it."""
    return card.replace(" \\\n  ", " ")


def files(ggufs: list[Path]) -> dict[str, str]:
    return {f"here/{path.name}": sha256_of(path) for path in ggufs}


def test_the_winners_settings_are_in_commands_and_preset(ggufs: list[Path], packaged: Any) -> None:
    known = files(ggufs)
    q4 = next(name for name in known if "Q4_0" in name)
    mixed = entry("q4", q4, 1.8, p_min=0.5, methods=["draft-dflash", "ngram-mod"])
    prose = work("prose", "no drafter", entry("q4", q4, 0.9, gain="slower", best=False))
    manifest, card, preset = packaged(comparison(known, work("one request at a time", "q4", mixed), prose))
    assert (manifest["n_max"], manifest["p_min"]) == (4, 0.5)
    assert "-md dflash-tiny-js-Q4_0.gguf --spec-type draft-dflash,ngram-mod" in calls(card)
    assert "--spec-draft-n-max 4 --spec-draft-p-min 0.5" in calls(card)
    assert "As compared on A chip, 8 cores; CUDA0: X, in embedded b11434" in card
    cells = (
        "`dflash-tiny-js-Q4_0.gguf` | n-max 4, p-min 0.5, with ngram-mod | 1.80 | 1.70 to 1.90 | 3.21 | the best here"
    )
    assert f"| one request at a time | {cells} |" in card
    assert (
        "| prose | `dflash-tiny-js-Q4_0.gguf` | n-max 4 | 0.90 | 0.80 to 1.00 | 3.21 | no gain: run the target alone |"
        in card
    )
    assert "first guess" not in card + preset
    assert preset.count("spec-draft-n-max = 4\nspec-draft-p-min = 0.5\n") == 2
    assert "spec-type = draft-dflash,ngram-mod\n" in preset


def test_other_settings_are_shown_and_used_but_for_the_places_of_one_machine(ggufs: list[Path], packaged: Any) -> None:
    known = files(ggufs)
    more = {"spec-draft-type-k": "q8_0", "spec-draft-backend-sampling": "false", "threads": "4"}
    manifest, card, preset = packaged(
        comparison(known, work("all", "own", entry("own", next(iter(known)), 1.5, settings=more)))
    )
    assert "n-max 4, spec-draft-type-k q8_0, spec-draft-backend-sampling false, threads 4 |" in card
    assert "--spec-draft-n-max 4 --spec-draft-type-k q8_0 --no-spec-draft-backend-sampling -fa on" in calls(card)
    assert "Keep the drafter's cache at f16" not in card
    assert "spec-draft-backend-sampling = false\n" in preset
    assert "threads = " not in preset
    assert manifest["contests"][0]["rows"][0]["settings"] == [list(pair) for pair in more.items()]


def test_a_better_stranger_is_named(ggufs: list[Path], packaged: Any) -> None:
    known = files(ggufs)
    here = next(iter(known))
    other = entry("eagle3-other", "elsewhere.gguf", 2.0, methods=["draft-eagle3"])
    own = entry("own", here, 1.5, best=False)
    manifest, card, _ = packaged(comparison(known, work("all", "eagle3-other", own, other)))
    assert manifest["contests"][0]["rows"][0]["winner"] == "eagle3-other"
    assert "eagle3-other was the better choice" in card


def test_tune_counts_as_well_and_an_option_overrules(ggufs: list[Path], packaged: Any) -> None:
    known = files(ggufs)
    here = next(iter(known))
    document = comparison(known, kind="tuning", final=work("all", "own", entry("own", here, 1.5, n_max=5)))
    manifest, card, preset = packaged(document, document, n_max=3)
    assert card.count("As tuned on A chip") == 2
    assert manifest["n_max"] == 3
    assert "spec-draft-n-max = 3\n" in preset


def test_what_is_no_result_for_these_files_is_refused(tmp_path: Path) -> None:
    known, here = {"a.gguf": "1" * 64}, "a.gguf"
    good = work("all", "own", entry("own", here, 1.5))

    def read(document: dict[str, Any]) -> dict[str, Any]:
        path = tmp_path / "contest.json"
        path.write_text(json.dumps(document))
        return contest_summary(path, {"1" * 64: "packaged.gguf"}, 7)

    assert read(comparison(known, good))["rows"][0]["file"] == "packaged.gguf"
    with pytest.raises(UsageError, match="none of the drafters"):
        read(comparison({"a.gguf": "0" * 64}, good))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"kind": "release"}, "is not a result of compare or tune"),
        (comparison(known, {"label": "x"}), "is not a result of compare or tune: .*missing"),
        (comparison(known, good, hardware="a\nb"), "not one line of text"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, n_max=99))), "above the 7 tokens"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, p_min=7.0))), "does not know"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, methods=["a", "--x"]))), "does not know"),
        (comparison(known, work("a", "own", entry("own", here, -1.0))), "speedup of 'own' is -1, not a number from 0"),
        (comparison(known, work("a", "else", entry("own", here, 1.0))), "'else', the winner of 'a', did not take part"),
        (comparison(known, work("a", "a\nb", entry("a\nb", here, 1.0))), "not one line of text"),
        (comparison(known, work("a", "own", entry("own", here, 1.0), entry("x" * 301, None, 1.0))), "not one line"),
        (comparison(known, work("a", "own", entry("own", here, 1.0, gain="*best*"))), "not one of faster"),
        *(
            (comparison(known, work("a", "own", entry("own", here, 1.5) | {name: value})), f"{name} of 'own' is ")
            for name in ("mean_length", "speedup", "tokens_per_second", "low", "high")
            for value in (float("nan"), -5, 1e308, float("inf"), 10**400)
        ),
        (comparison(known, work("a", "own", entry("own", here, 1.5, low=1.6))), "does not lie between"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, high=None))), "does not lie between"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, settings={"api-key": "x"}))), "no contest makes"),
        (comparison(known, work("a", "own", entry("own", here, 1.5, settings={"threads": "4\n"}))), "no contest makes"),
    ]
    for document, words in bad:
        with pytest.raises(ConfigError, match=words):
            read(document)


def test_marks_in_texts_stay_texts(ggufs: list[Path], packaged: Any) -> None:
    known = files(ggufs)
    evil = "x](http://y) | <script>"
    own, other = entry("own", next(iter(known)), 1.5, best=False), entry(evil, "else", 2.0, methods=["draft-eagle3"])
    document = comparison(known, work(evil, evil, own, other), hardware=evil, engine=evil)
    _, card, _ = packaged(document)
    assert "](http" not in card
    assert "<script>" not in card


def test_a_manifest_holds_no_number_that_json_lacks() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        to_text({"validation": [{"acceptance": float("nan")}]})

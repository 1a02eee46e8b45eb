"""The second verdict, with a fake llama-server: what is claimed of the speed, and what a hopeless pair costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_engine import setup

from dflash_convert.validation import expected
from dflash_convert.validation.prompts import Item

Validate = Callable[..., Any]


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """A line for each engine start: the draft length, 0 for the baseline."""
    return tmp_path / "starts"


@pytest.fixture
def validate(
    fixtures: Path,
    drafters: dict[str, Path],
    cli: Callable[..., Any],
    fake_server: Callable[[str], Path],
    starts: Path,
    tmp_path: Path,
) -> Validate:
    prompts = tmp_path / "two.jsonl"
    prompts.write_text('{"prompt": "one", "n_predict": 31}\n{"prompt": "two", "n_predict": 61}\n')

    def run(mode: str, *args: object) -> Any:
        recording = tmp_path / f"recording-{mode}"
        count = "sed 's/.*--spec-draft-n-max \\([0-9]*\\).*/\\1/; /^-m/ s/.*/0/'"
        recording.write_text(
            f'#!/bin/sh\ncase "$*" in *--port*) echo "$*" | {count} >> "{starts}";; esac\n'
            f'exec "{fake_server(mode)}" "$@"\n'
        )
        recording.chmod(0o755)
        files = (drafters["bf16"], fixtures / "tiny-js" / "target-bf16.gguf", "--prompts", prompts)
        return cli("validate", *files, "--llama-server", recording, *args)

    return run


def test_faster_with_its_spread(validate: Validate, starts: Path) -> None:
    result = validate("normal", "--quick", "--rounds", 3, "--n-max", 4, "--json").json
    assert (result["verdict"], result["gain"], result["exit_code"]) == ("healthy", "faster", 0)
    speed = result["speed"]
    assert (speed["speedup"], speed["rounds"], speed["prompts"], speed["attempts"]) == (2.0, 3, 2, 1)
    assert speed["low"] < 2.0 < speed["high"]
    assert (speed["tokens_per_second"], speed["baseline_tokens_per_second"]) == (50.0, 25.0)
    assert (speed["target_ms"], speed["limit"]) == (40.0, 3.0)
    assert speed["draft_ms"] == pytest.approx(speed["step_ms"] / 2, rel=1e-3)
    assert speed["advice"] is None
    assert result["total"]["speedup"] == 2.0
    assert result["total"]["drafted"] == 120  # every prompt once, however often it was timed
    assert starts.read_text().split() == ["0", "4", "0", "4"]


def test_a_healthy_pair_that_is_slower(validate: Validate, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    ran = validate("slower", "--quick", "--rounds", 3, "--n-max", 4, "--html", report)
    assert ran.code == 0  # the pair is well; no speed was required
    assert "verdict: healthy (" in ran.out
    assert "gain here: slower: 0.40 x the speed without the drafter (0.39 to 0.41; 3 rounds of 2 prompts)" in ran.out
    # 92 tokens in 9,200 ms of 30 steps, half of each the drafter's
    assert (
        "why: a step of drafting and verifying takes 307 ms (153 of them the drafter's), as long as 7.67 tokens"
        in ran.out
    )
    assert "and yields 3.00 tokens" in ran.out
    assert "try: a shorter draft, which costs less to verify: --n-max 2" in ran.out
    page = report.read_text()
    assert 'class="verdict plain">healthy<' in page
    assert 'class="verdict slower">slower here<' in page
    assert 'class="verdict healthy"' not in page


def test_a_speed_up_above_the_mean_length_is_no_figure(validate: Validate, starts: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    ran = validate("impossible", "--quick", "--rounds", 3, "--n-max", 4, "--json", "--html", report)
    assert ran.code == 0, ran.err
    result = ran.json
    assert (result["verdict"], result["gain"]) == ("healthy", "disturbed")
    assert result["total"]["speedup"] is None
    assert [result["speed"][name] for name in ("speedup", "low", "high", "attempts")] == [None, None, None, 2]
    assert "more than its mean length of 3.00" in result["speed"]["reason"]
    assert "measured again" in ran.err
    assert starts.read_text().split() == ["0", "4", "0", "4"] * 2
    assert "10.0" not in report.read_text().split("<style>")[1].split("</style>")[1].split("Thresholds")[0]
    assert validate("impossible", "--quick", "--min-speedup", "1.5", "--n-max", 4).code == 6


def test_a_hopeless_pair_costs_one_round(validate: Validate, starts: Path) -> None:
    ran = validate("hopeless", "--json", "--long-context", 600)
    assert ran.code == 6
    result = ran.json
    assert (result["verdict"], result["gain"], result["stopped_early"]) == ("broken", "not measured", True)
    assert (result["runs"], result["sweep"]) == ([], None)
    assert starts.read_text().split() == ["0", "7"]
    assert any("--keep-going runs the rest" in warning for warning in result["warnings"])
    assert "stopped after the first round" in result["speed"]["reason"]


def test_keep_going_runs_the_rest(validate: Validate) -> None:
    result = validate("hopeless", "--json", "--long-context", 600, "--keep-going", "--rounds", 1).json
    assert (result["verdict"], result["stopped_early"], result["exit_code"]) == ("broken", False, 6)
    assert [r["label"] for r in result["runs"]] == ["sampled", "long-context", "sweep"]


def test_other_text_in_the_long_run_is_broken(validate: Validate, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    ran = validate("differs-long", "--json", "--long-context", 600, "--rounds", 1, "--html", report)
    assert ran.code == 6
    result = ran.json
    assert result["verdict"] == "broken"
    assert result["total"]["identical"] is True  # the main run's texts are the same, and the tile says more
    assert "differs in the long-context run (n-max 7)" in result["reasons"][0]
    assert "<b>2 of 6 differ</b><span>greedy text, all runs</span>" in report.read_text()


def test_acceptance_lost_in_a_long_context_is_not_healthy(validate: Validate) -> None:
    ran = validate("loses-long", "--json", "--long-context", 600, "--rounds", 1)
    assert (ran.code, ran.json["verdict"]) == (0, "weak")
    assert "acceptance falls from 28.6 % to 0.0 % at 600 tokens of context" in ran.json["reasons"]


def test_every_run_with_few_engine_starts(validate: Validate, starts: Path) -> None:
    result = validate("normal", "--json", "--long-context", 600).json
    assert [(r["label"], r["n_max"]) for r in result["runs"]] == [("sampled", 7), ("long-context", 7), ("sweep", 4)]
    assert starts.read_text().split() == ["0", "7", "4", "7", "0", "7", "4"]
    sweep = result["sweep"]
    assert [(p["n_max"], p["gain"], p["speedup"]) for p in sweep["points"]] == [(7, "faster", 2.0), (4, "faster", 2.0)]
    assert (sweep["recommended"], sweep["pays"], sweep["clear"]) == (4, True, False)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_required_speed_up_needs_its_rounds(validate: Validate, rounds: int) -> None:
    ran = validate("normal", "--min-speedup", 1.5, "--rounds", rounds)
    assert ran.code == 2
    assert "is too few for --min-speedup" in ran.err


def test_answers_too_short_to_time_prove_no_speed(validate: Validate) -> None:
    result = validate("normal", "--quick", "--rounds", 3, "--n-predict", 5, "--json", "--n-max", 4).json
    assert (result["gain"], result["speed"]["prompts"]) == ("not measured", 0)
    assert "at least 8 tokens" in result["speed"]["reason"]


def test_progress_knows_how_many_requests_there_are(validate: Validate) -> None:
    """Each prompt is told as it begins; so many were expected. Two prompts, three rounds with and without the drafter,
    then a sampled and a long run of both."""
    ran = validate("normal", "--n-max", "4,2", "--rounds", 3, "-v")
    assert ran.code == 0, ran.err
    begun = [line for line in ran.err.splitlines() if line.startswith(("one", "two"))]
    two = tuple(Item(name, "set", 31, prompt=name) for name in ("one", "two"))
    planned = replace(setup(quick=False, long_context=512), items=two, n_max=(4, 2))
    assert len(begun) == expected.requests(planned) == 3 * (2 + 2 + 2) + 2 * (2 + 2)


def test_what_will_run_is_told_before_it_does(validate: Validate) -> None:
    ran = validate("normal", "--n-max", "4,2", "--rounds", 3)
    lines = ran.err.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("round 1 of 3"))
    assert lines[0].startswith("validate: dflash-")
    plan = "will run 2 prompts (one, two) in 3 rounds: at most 26 requests, 7 engine starts"
    assert plan in lines[:first]
    rest = next(
        i for i, line in enumerate(lines) if re.fullmatch(r"the first round took .*: about .* left, or less", line)
    )
    assert rest > first
    quick = validate("normal", "--n-max", "4", "--quick")
    assert "in 1 round: at most 4 requests, 2 engine starts" in quick.err
    assert "the first round took" not in quick.err
    assert validate("normal", "--n-max", "4", "--quick", "-q").err == ""


def test_a_drafter_beside_is_counted() -> None:
    alone = setup(quick=True)
    both = replace(alone, beside=alone.pair.drafter)
    assert expected.requests(both) == expected.requests(alone) * 3 // 2


def test_every_start_is_told_with_v(validate: Validate, starts: Path) -> None:
    told = [line for line in validate("normal", "-v", "--quick").err.splitlines() if line.startswith("starting llama-")]
    assert len(told) == len(starts.read_text().split())
    assert sum("--spec-type draft-dflash" in line for line in told) == len(told) // 2

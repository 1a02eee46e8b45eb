"""A budget in an engine that plays: what is over it is listed and not run."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.contest import budget
from dflash_convert.hashing import sha256_of
from dflash_convert.release.contests import contest_summary
from dflash_convert.text import MIB

Played = Callable[..., Any]


def test_the_plan_stands_beside_what_the_log_says(played: Played) -> None:
    ran = played("compare", "ngram-simple", "--json", "--budget", "1GiB")
    found = ran.json
    rows = found["memory"]
    assert [row["logged_mib"] for row in rows] == [45, 45, 45]
    alone, pair, ngram = (row["planned_mib"] for row in rows)
    assert alone == ngram < pair
    assert {row["largest_context"] for row in rows} == {4096}, "as the target was trained"
    assert found["refused"] == []


def test_what_is_over_the_budget_is_listed_and_not_run(played: Played) -> None:
    ran = played("compare", "ngram-simple", "--json", "--budget", "30MiB")
    found = ran.json
    assert [each["name"] for each in found["work"][0]["candidates"]] == ["no drafter", "ngram-simple"]
    (refused,) = found["refused"]
    assert refused["name"] == "dflash-tiny-js-Q8_0"
    assert "MiB of the budget's 30.0 MiB; it fits up to a context of " in refused["reason"]
    assert "dflash-tiny-js-Q8_0, n-max" not in ran.err


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("1MiB", "nothing is left to run: no drafter needs"),
        ("1KiB", "MiB of the budget's 0.001 MiB; no context is short enough"),
        ("1KiB", "MiB lets one run"),
        ("9", "--budget 9"),
    ],
)
def test_budgets_that_nothing_meets(played: Played, size: str, words: str) -> None:
    ran = played("compare", "ngram-simple", "--json", "--budget", size)
    assert ran.code == 2
    assert words in ran.err


def test_the_servers_own_arguments_count() -> None:
    made = budget.request_of(
        4096, 2, ("-ctk", "q8_0", "--spec-draft-type-v", "q4_0", "-ub", "256", "--mlock", "-b", "x")
    )
    assert (made.ctx_size, made.parallel, made.micro_batch, made.batch) == (8192, 2, 256, 2048)
    assert (made.cache_k, made.cache_v, made.draft_cache_k, made.draft_cache_v) == ("q8_0", "F16", "F16", "q4_0")


def test_a_projector_counts_with_its_file(played: Played, tmp_path: Path) -> None:
    eyes = tmp_path / "eyes.gguf"
    eyes.write_bytes(bytes(5 * MIB))
    assert budget.projector(("--mlock", "--mmproj", str(eyes))) == 5 * MIB
    assert budget.projector(("--mmproj", str(tmp_path / "none"))) == 0
    ran = played("compare", "ngram-simple", "--json", "--budget", "24MiB", "--", "--mmproj", eyes)
    assert ran.code == 2
    assert "no drafter needs 26.3 MiB of the budget's 24.0 MiB; it fits up to a context of " in ran.err


def test_a_need_is_told_in_mib() -> None:
    assert budget.Need(3 * MIB).mib == 3


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_both_commands_write_a_page_and_what_package_takes(
    played: Played, drafter: Path, tmp_path: Path, command: str
) -> None:
    page, result = tmp_path / "page.html", tmp_path / "result.json"
    result.write_text(json.dumps(played(command, "--json", "--html", page).json))
    assert "Side by side" in page.read_text()
    assert "llama-server -m" in page.read_text()
    assert played(command, "--html", page).code == 9, "an existing report is kept"
    found = contest_summary(result, {sha256_of(drafter): "dflash-x-Q8_0.gguf"}, 7)
    assert found["rows"][0]["file"] == "dflash-x-Q8_0.gguf"
    assert 1 <= found["rows"][0]["n_max"] <= 7
    assert "core" in found["hardware"]
    assert platform.node() not in found["hardware"].split(), "no host name is published"

"""With -v every start of the engine is told with its settings, and the end of its log when it fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STARTING = re.compile(r"^starting llama-server .*?: (-m .*); the end of its log", re.MULTILINE)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_compare_tells_every_start(played: Callable[..., Any], drafter: Path) -> None:
    ran = played("compare", "ngram-simple", "-v", "--parallel", 2)
    starts = STARTING.findall(ran.err)
    assert len(starts) == len(re.findall(r", round \d+$", ran.err, re.MULTILINE)) > 3
    assert 0 < sum(f"-md {drafter}" in each for each in starts) < len(starts)
    assert any("--spec-type draft-dflash --spec-draft-n-max 7" in each for each in starts)
    assert any("--spec-type ngram-simple" in each for each in starts)
    assert any("-c 8192 -np 2" in each for each in starts)
    assert not STARTING.search(played("compare", "ngram-simple").err)
    assert not STARTING.search(played("compare", "ngram-simple", "-v", "-q").err)


def test_tune_and_targets_tell_every_start(played: Callable[..., Any], drafter: Path, tmp_path: Path) -> None:
    assert len(STARTING.findall(played("tune", "-v").err)) > 3
    target = tmp_path / "target.gguf"
    target.symlink_to(Path(__file__).resolve().parents[2] / "fixtures/tiny-js/target-bf16.gguf")
    other = tmp_path / "other.gguf"
    other.write_bytes(target.read_bytes() + b"\0" * 32)
    told = STARTING.findall(played("compare", "-v", "--targets", first=[target, other, drafter]).err)
    assert {each.split()[1] for each in told} == {str(target), str(other)}


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_the_log_of_an_engine_that_fails_is_shown(command: str, played: Callable[..., Any]) -> None:
    told, silent = played(command, "-v", mode="assert"), played(command, mode="assert")
    assert told.code == silent.code == 7
    assert told.err.count("GGML_ASSERT(target_layer_ids_n > 0") == 1 + silent.err.count(
        "GGML_ASSERT(target_layer_ids_n > 0"
    )
    assert "the end of the engine's log:\n" in told.err
    assert "the engine's log" not in silent.err

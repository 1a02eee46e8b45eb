"""Loads beside one request at a time, in an engine that plays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from machines import drafter

from dflash_convert.contest import images, report, works
from dflash_convert.contest.trial import Work
from dflash_convert.engine.trace import Request
from dflash_convert.validation import requests
from dflash_convert.validation.prompts import parse

Played = Callable[..., Any]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
ASK = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]}]
PICTURES = [json.dumps({"messages": ASK, "n_predict": 24}), json.dumps({"prompt": "text", "n_predict": 24})]
WITH_PROJECTOR = ("--", "--mmproj", "eyes.gguf")


def by_label(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["label"]: each for each in found["work"]}


def test_a_sampled_load_has_a_seed_a_request() -> None:
    first = Work("main", ("a", "b"), ("code", "code"), (Request("a", 8), Request("b", 8)))
    made = works.sampled_work(first, 0.8)
    assert made.label == "sampled at temperature 0.8"
    assert [(r.sampling.temperature, r.sampling.seed) for r in made.requests] == [(0.8, 1), (0.8, 2)]
    assert [r.prompt for r in made.requests] == ["a", "b"]


def test_a_resumed_conversation_processes_what_is_new(played: Played) -> None:
    """The fake takes half a millisecond a character that is not in its cache."""
    turns = [json.dumps({"turns": ["a question " * 9, "another"], "n_predict": 12, "name": "talk"})]
    found = by_label(played("compare", "--resumed", "--sampled", "0.7", "--json", lines=turns).json)
    assert list(found) == [
        "one request at a time",
        "sampled at temperature 0.7",
        "conversation, first turn",
        "conversation, resumed turn",
    ]
    anew, resumed = found["conversation, first turn"], found["conversation, resumed turn"]
    for first, second in zip(anew["candidates"], resumed["candidates"], strict=True):
        assert second["first_token_ms"] < first["first_token_ms"] / 3
    assert resumed["candidates"][1]["mean_length"] > 2


def test_prompts_of_one_turn_get_another_question(played: Played) -> None:
    found = by_label(played("compare", "--resumed", "--json").json)
    anew, resumed = found["conversation, first turn"], found["conversation, resumed turn"]
    times = [each["candidates"][0]["first_token_ms"] for each in (anew, resumed)]
    assert times[1] > times[0], "the added question is longer than the prompts"


def test_thinking_is_switched_by_the_engines_template(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = [json.dumps({"turns": ["why?"], "n_predict": 8})]
    found = by_label(played("compare", "--thinking", "--json", lines=chats).json)
    assert list(found) == ["one request at a time", "thinking on", "thinking off"]
    monkeypatch.setattr(requests, "thinking_modes", lambda _: None)
    ran = played("compare", "--thinking", "--json", lines=chats)
    assert list(by_label(ran.json)) == ["one request at a time"]
    assert "no such switch" in ran.err


@pytest.mark.parametrize(
    ("mode", "survives", "follows"),
    [("normal", True, True), ("image-blind", False, True), ("image-poison", False, False)],
)
def test_whether_drafting_survives_an_image(played: Played, mode: str, survives: bool, follows: bool) -> None:
    found = played("compare", "--json", *WITH_PROJECTOR, mode=mode, lines=PICTURES).json
    (row,) = found["images"]
    assert (row["survives"], row["text_after_survives"]) == (survives, follows)
    assert row["acceptance_before"] == pytest.approx(2 / 7, abs=1e-4)
    assert list(by_label(found)) == [
        "one request at a time",
        "images, before an image",
        "images, with an image",
        "images, after an image",
    ]


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.5, 0.3, 0.5), "50 % before, 30 % with, 50 % after an image: drafting survives one."),
        ((0.5, 0.3, 0.1), "drafting survives one, but text after it suffers."),
        ((0.5, None, 0.5), "nothing drafted with, 50 % after an image: drafting does not survive one, and text after"),
        ((0.5, 0.2, 0.0), "does not survive one, nor does it come back in text after it."),
        ((None, None, None), "drafting does not survive one, nor"),
    ],
)
def test_the_sentence_on_images(shares: tuple[float | None, float | None, float | None], words: str) -> None:
    assert words in report.survival(images.Survival(drafter("a"), *shares))


def test_images_that_nothing_reads_are_refused(played: Played) -> None:
    ran = played("compare", "--json", lines=PICTURES)
    assert ran.code == 2
    assert "holds an image, which needs a projector" in ran.err
    assert "-- --mmproj FILE" in ran.err


def test_prompts_of_images_alone_have_their_text_as_the_main_load(played: Played) -> None:
    found = played("compare", "--json", *WITH_PROJECTOR, lines=PICTURES[:1]).json
    assert found["work"][0]["label"] == "one request at a time"
    assert found["work"][0]["candidates"][1]["drafted"] > 0


def test_text_comes_before_every_image_and_again_behind_each() -> None:
    made = images.work(parse("\n".join([PICTURES[0]] * 2), "prompts", "prompts"))
    before, image, after = images.BEFORE, images.IMAGE, images.AFTER
    assert made.kinds == (before, before, image, after, image, after)
    pictured = [isinstance(r.messages[0]["content"], list) for r in made.requests]
    assert pictured == [kind == image for kind in made.kinds]
    assert made.requests[0].messages[0]["content"] == "What is this?"


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_what_will_run_is_told_before_it_does(command: str, played: Callable[..., Any]) -> None:
    ran = played(command)
    assert ran.code == 0, ran.err
    lines = ran.err.splitlines()
    assert re.fullmatch(rf"{command}: 1 candidate on target-bf16\.gguf", lines[0])
    assert lines[1] == "will run 2 prompts (one, two), 3 rounds"
    begun = next(i for i, line in enumerate(lines) if re.search(r", round \d", line))
    assert any(re.search(r"(at most|about) \d+ engine starts", line) for line in lines[:begun])
    took = [i for i, line in enumerate(lines) if re.fullmatch(r"that start took .*: about .* left", line)]
    assert took[0] > begun

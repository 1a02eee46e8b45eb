"""What can be tuned beside depth and p-min: only what the engine at hand has, and as it wants to be told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from machines import drafter

from dflash_convert.contest import preset, report
from dflash_convert.contest.tweaks import (
    BACKEND_SAMPLING,
    CACHE,
    HOST_SAMPLED,
    NGRAM,
    ON_CPU,
    PROBABILISTIC,
    Tweak,
    tweaks,
)
from dflash_convert.engine import settings
from dflash_convert.engine.trace import EngineInfo, Launch

EVERY = (*settings.FIELDS, "spec-draft-device")
CARDS = ("CUDA0: one (1 MiB)", "CUDA1: other (1 MiB)")
SERVER = EngineInfo("llama-server", "x", "b1", ("draft-dflash", "ngram-mod"), CARDS, options=EVERY)
ALONE = replace(SERVER, devices=("CPU: chip (1 MiB)",))
LAUNCH = Launch(Path("t.gguf"))
DFLASH = ("draft-dflash",)


def names(found: tuple[Tweak, ...]) -> list[str]:
    return [each.short for each in found]


def test_cards_bring_places_and_a_machine_without_brings_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    common = [CACHE, HOST_SAMPLED, BACKEND_SAMPLING]
    cards = tweaks(SERVER, LAUNCH, DFLASH, sampled=False)
    assert names(cards) == [*names(tuple(common)), "drafter on CPU", "drafter on CUDA1", "ngram-mod"]
    assert names(tweaks(ALONE, LAUNCH, DFLASH, sampled=False)) == [*names(tuple(common)), "8 threads", "ngram-mod"]


def test_what_was_said_is_not_tried_again() -> None:
    said = replace(LAUNCH, draft_device="CUDA1", threads=3, extra_args=("-ctkd", "q4_0", "--backend-sampling"))
    assert tweaks(SERVER, said, (*DFLASH, "ngram-mod"), sampled=False) == (HOST_SAMPLED,)


def test_what_the_engine_lacks_is_not_tried() -> None:
    old = replace(SERVER, options=("spec-draft-ngl",), spec_types=DFLASH)
    assert tweaks(old, LAUNCH, DFLASH, sampled=False) == (ON_CPU,)


def test_drafts_are_drawn_where_the_method_can_and_answers_are_sampled() -> None:
    assert PROBABILISTIC in tweaks(SERVER, LAUNCH, ("draft-mtp",), sampled=True)
    assert PROBABILISTIC not in tweaks(SERVER, LAUNCH, ("draft-mtp",), sampled=False)
    assert PROBABILISTIC not in tweaks(SERVER, LAUNCH, DFLASH, sampled=True)


def test_a_tweak_takes_the_place_of_another_of_its_knob() -> None:
    other = replace(ON_CPU, short="drafter on CUDA1", settings=(("spec-draft-device", "CUDA1"),))
    found = drafter("a").tweaked(CACHE).tweaked(ON_CPU).tweaked(other)
    assert found.tweaks == (CACHE, other)
    assert drafter("a").tweaked(NGRAM).spec_type == "draft-dflash,ngram-mod"


def test_a_tweaked_candidate_as_command_preset_and_row() -> None:
    whole = replace(drafter("a", 7), drafter=Path("a.gguf")).tweaked(HOST_SAMPLED).tweaked(CACHE)
    told = preset.command(Path("t.gguf"), whole)
    assert "--no-spec-draft-backend-sampling --spec-draft-type-k q8_0 --spec-draft-type-v q8_0" in told
    assert "spec-draft-backend-sampling = false\n" in preset.text(Path("t.gguf"), whole)
    assert whole.settings == "n-max 7, drafts sampled on the host, draft cache q8_0"
    assert report.candidate_json(whole)["settings"]["spec-draft-type-k"] == "q8_0"


def test_the_package_gets_what_the_server_would_be_told() -> None:
    def fields(**values: Any) -> SimpleNamespace:
        return SimpleNamespace(**values)

    draft = fields(cache_type_k=1, cache_type_v=1, n_gpu_layers=-1, backend_sampling=True, probabilistic=False)
    params = fields(
        speculative=fields(draft=draft, synth_len=-1.0),
        sampling=fields(backend_sampling=False),
        cpuparams=fields(n_threads=-1),
        cpuparams_batch=fields(n_threads=-1),
    )
    assert set(settings.known_to(params)) == set(settings.FIELDS)
    package = fields(ggml_type=fields(GGML_TYPE_Q8_0=8))
    every = (*CACHE.settings, *HOST_SAMPLED.settings, *ON_CPU.settings, *BACKEND_SAMPLING.settings)
    settings.apply(package, params, (*every, *PROBABILISTIC.settings, ("threads", "3"), ("spec-synth-len", "2.5")))
    assert vars(draft) == {
        "cache_type_k": 8,
        "cache_type_v": 8,
        "n_gpu_layers": 0,
        "backend_sampling": False,
        "probabilistic": True,
    }
    assert params.sampling.backend_sampling
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3
    assert params.speculative.synth_len == 2.5
    del params.sampling
    assert "backend-sampling" not in settings.known_to(params)


def test_tune_turns_what_the_server_has(played: Callable[..., Any]) -> None:
    """The fake has one card, and all settings are equally fast: the search still ends, in few starts."""
    found = played("tune", "--json").json
    turned = [each for each in found["measured"] if each["settings"] or "ngram" in "".join(each["methods"])]
    assert {tuple(each["settings"]) for each in turned} >= {
        ("spec-draft-type-k", "spec-draft-type-v"),
        ("spec-draft-backend-sampling",),
        ("backend-sampling",),
        ("spec-draft-ngl",),
    }
    assert found["starts"] <= found["exhaustive_starts"] / 3


def test_tune_says_how_long_it_takes(played: Callable[..., Any]) -> None:
    ran = played("tune")
    first, _, then = ran.err.partition("\nno drafter: ")
    assert "engine starts; the first tells how long each takes" in first
    assert "a start with its answers takes" in then.splitlines()[1]
    assert max(len(line) for line in ran.out.splitlines() if line.startswith("  ")) <= 80

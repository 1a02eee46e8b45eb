"""The numpy pair against the official implementation's trace of the trained pair, token for token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from speculative_decoding import generate

from dflash_convert.errors import PairingError, UsageError
from dflash_convert.forward.load import DrafterSource, target_from_checkpoint, target_from_gguf
from dflash_convert.forward.target import Target, generate_greedy

N_PREDICT, N_MAX = 96, 7


def replay(accepted_per_step: list[int], n_max: int = N_MAX) -> list[tuple[int, int]]:
    """(drafted, accepted) per step as llama.cpp counts: the first token comes with the prompt."""
    left, steps = N_PREDICT - 1, []
    for accepted in accepted_per_step:
        if left <= 0:
            break
        drafted = min(n_max, left - 1)
        steps.append((drafted, min(accepted, drafted)))
        left -= steps[-1][1] + 1
    return steps


def steps_of(target: Target, source: DrafterSource, prompt: dict[str, Any]) -> list[tuple[int, int]]:
    result = generate(target, source.drafter(target), prompt["prompt_ids"], N_PREDICT, N_MAX)
    assert list(result.ids) == prompt["greedy_ids"][:N_PREDICT]
    return [(len(step.drafted), step.accepted) for step in result.steps]


@pytest.mark.parametrize("index", range(12))
def test_steps_of_every_prompt(index: int, target: Target, source: DrafterSource, trace: dict[str, Any]) -> None:
    prompt = trace["prompts"][index]
    assert steps_of(target, source, prompt) == replay(prompt["accepted_per_step"])


def test_replayed_totals_are_the_published_ones(trace: dict[str, Any]) -> None:
    steps = [step for p in trace["prompts"] for step in replay(p["accepted_per_step"])]
    assert (sum(accepted for _, accepted in steps), sum(drafted for drafted, _ in steps)) == (869, 1807)


@pytest.mark.shared
def test_mismatched_target_is_hardly_ever_right(source: DrafterSource, tiny: Path, shared: Path) -> None:
    other = target_from_gguf(shared / "pairs" / "tiny-js" / "other-target-f32.gguf")
    prompts = json.loads((tiny / "trace-other-target.json").read_text())["prompts"]
    accepted = 0
    for prompt in (prompts[1], prompts[3], prompts[0]):
        steps = steps_of(other, source, prompt)
        assert steps == replay(prompt["accepted_per_step"])
        accepted += sum(right for _, right in steps)
    assert accepted == 4


def test_greedy_generation_is_the_traces(target: Target, trace: dict[str, Any]) -> None:
    for prompt in trace["prompts"][:3]:
        assert generate_greedy(target, prompt["prompt_ids"], N_PREDICT) == prompt["greedy_ids"][:N_PREDICT]


@pytest.mark.shared
def test_target_directory_and_gguf_are_one_model(target: Target, shared: Path) -> None:
    other = target_from_checkpoint(shared / "pairs" / "tiny-js" / "target")
    assert other.hyper == target.hyper
    assert set(other.weights) == set(target.weights)
    assert all((other.weights[name] == target.weights[name]).all() for name in target.weights)


def test_shorter_drafts_shrink_the_block(target: Target, source: DrafterSource, trace: dict[str, Any]) -> None:
    """With n_max 3 the drafter sees three masks instead of seven, which changes what it drafts."""
    drafter, prompt = source.drafter(target), trace["prompts"][0]["prompt_ids"]
    short, full = (generate(target, drafter, prompt, N_PREDICT, n) for n in (3, 7))
    assert short.ids == full.ids
    assert max(len(step.drafted) for step in short.steps) == 3
    assert short.steps[0].drafted != full.steps[0].drafted[:3] or short.steps[0].gaps != full.steps[0].gaps[:3]


def test_a_stop_token_ends_the_output(target: Target, source: DrafterSource, trace: dict[str, Any]) -> None:
    prompt = trace["prompts"][0]
    stop = prompt["greedy_ids"][20]
    wanted = prompt["greedy_ids"][: prompt["greedy_ids"].index(stop) + 1]
    assert list(generate(target, source.drafter(target), prompt["prompt_ids"], 96, 7, [stop]).ids) == wanted
    assert generate_greedy(target, prompt["prompt_ids"], 96, [stop]) == wanted


def test_one_token_needs_no_step(target: Target, source: DrafterSource, trace: dict[str, Any]) -> None:
    result = generate(target, source.drafter(target), trace["prompts"][0]["prompt_ids"], 1, 7)
    assert (list(result.ids), result.steps) == (trace["prompts"][0]["greedy_ids"][:1], ())


def test_totals_add_up_the_steps(target: Target, source: DrafterSource, trace: dict[str, Any]) -> None:
    prompt = trace["prompts"][5]
    result = generate(target, source.drafter(target), prompt["prompt_ids"], N_PREDICT, N_MAX)
    assert (result.accepted, result.drafted) == (66, 195)
    assert all(len(step.gaps) == len(step.drafted) for step in result.steps)


def test_hidden_sizes_must_agree(target: Target, source: DrafterSource) -> None:
    drafter = source.drafter(target)
    drafter.hyper = replace(drafter.hyper, hidden=64)
    with pytest.raises(PairingError, match="drafter 64, target 128"):
        generate(target, drafter, [1], 5, 7)


def test_misuse_is_refused(target: Target, source: DrafterSource) -> None:
    drafter = source.drafter(target)
    with pytest.raises(UsageError, match="at least 1"):
        generate(target, drafter, [1], 0, 7)
    with pytest.raises(UsageError, match="no tokens"):
        generate(target, drafter, [], 5, 7)
    with pytest.raises(UsageError, match="512 embedding rows"):
        generate(target, drafter, [512], 5, 7)
    with pytest.raises(UsageError, match="no embeddings or head"):
        generate(target, source.drafter(), [1, 2], 5, 7)


def test_taps_beyond_the_target_are_refused(target: Target) -> None:
    with pytest.raises(PairingError, match="tap 7 lies outside the target's 6 layers"):
        target.forward([1], target.new_cache(), [7])

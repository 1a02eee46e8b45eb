"""The trained pair in the embedded llama.cpp: counts, identical text, the mismatched target, references."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp")

N_MAX = 7


def replay(accepted_per_step: list[int], n_predict: int, n_max: int) -> tuple[int, int]:
    """Drafted and accepted of an official trace as llama.cpp counts them.

    The first token comes with the prompt; a step drafts min(n_max, tokens left - 1), accepts no more than it
    drafted and adds one token of the target.
    """
    generated, drafted, accepted = 1, 0, 0
    for step in accepted_per_step:
        draft = min(n_max, n_predict - generated - 1)
        if draft <= 0:
            break
        kept = min(step, draft)
        drafted += draft
        accepted += kept
        generated += kept + 1
    return drafted, accepted


@pytest.fixture(scope="module")
def trace(fixtures: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((fixtures / "tiny-js" / "trace.json").read_text())
    return data


@pytest.fixture(scope="module")
def f32_run(shared: Path, fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any]) -> dict[str, Any]:
    ran = cli(
        *("validate", drafters["f32"], shared / "pairs" / "tiny-js" / "target-f32.gguf", "--json", "--quick"),
        *("--prompts", fixtures / "tiny-js" / "prompts.jsonl", "--n-max", N_MAX, "-t", 1),
    )
    assert ran.code == 0, ran.err
    data: dict[str, Any] = ran.json
    return data


@pytest.mark.shared
def test_counts_equal_the_official_trace(f32_run: dict[str, Any], trace: dict[str, Any]) -> None:
    expected = [replay(p["accepted_per_step"], trace["n_predict"], N_MAX) for p in trace["prompts"]]
    assert [(p["drafted"], p["accepted"]) for p in f32_run["prompts"]] == expected
    total = f32_run["total"]
    assert (total["drafted"], total["accepted"]) == (1807, 869) == tuple(map(sum, zip(*expected, strict=True)))
    assert total["acceptance"] == pytest.approx(869 / 1807, abs=1e-6)


@pytest.mark.shared
def test_tokens_equal_the_official_trace(f32_run: dict[str, Any], trace: dict[str, Any]) -> None:
    for ours, theirs in zip(f32_run["prompts"], trace["prompts"], strict=True):
        assert ours["tokens"] == theirs["output_ids"][:96]
        assert ours["text"] == ours["baseline_text"]


@pytest.mark.shared
def test_fields_of_the_contract(f32_run: dict[str, Any]) -> None:
    names = {"drafted", "accepted", "acceptance", "mean_length", "tokens_per_second"}
    names |= {"baseline_tokens_per_second", "identical"}
    assert f32_run["verdict"] == "healthy"
    assert f32_run["engine"]["kind"] == "embedded"
    for figures in (f32_run["total"], *f32_run["prompts"]):
        assert names <= set(figures)
        assert figures["identical"] is True
        assert figures["tokens_per_second"] > 0
        assert figures["baseline_tokens_per_second"] > 0
    steps = f32_run["total"]["steps"]
    assert f32_run["total"]["mean_length"] == pytest.approx(1 + 869 / steps, abs=1e-4)
    assert sum(f32_run["total"]["accepted_per_position"]) == 869
    assert f32_run["thresholds"]["recorded_at"] == f32_run["settings"]["started_at"]


@pytest.mark.parametrize(("kind", "accepted", "drafted"), [("bf16", 869, 1811), ("q8_0", 869, 1807)])
def test_within_a_point_in_other_types(
    fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any], kind: str, accepted: int, drafted: int
) -> None:
    pair = fixtures / "tiny-js"
    ran = cli(
        *("validate", drafters[kind], pair / "target-bf16.gguf", "--prompts", pair / "prompts.jsonl"),
        *("--quick", "-t", 1, "--json"),
    )
    assert ran.code == 0, ran.err
    total = ran.json["total"]
    assert total["acceptance"] == pytest.approx(accepted / drafted, abs=0.01)
    assert total["identical"] is True


@pytest.mark.shared
def test_mismatched_target_is_broken(
    shared: Path, fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any]
) -> None:
    ran = cli(
        *("validate", drafters["bf16"], shared / "pairs" / "tiny-js" / "other-target-bf16.gguf", "--quick", "-t", 1),
        *("--prompts", fixtures / "tiny-js" / "prompts.jsonl", "--json"),
    )
    assert ran.code == 6
    result = ran.json
    assert result["verdict"] == "broken"
    assert result["total"]["acceptance"] < 0.005
    assert 7400 < result["total"]["drafted"] <= 7700
    assert result["total"]["mean_length"] == pytest.approx(1, abs=0.02)
    # nothing in the text tells: it is the same, but for choices the target itself finds equally likely
    assert all(p["divergence"] is None or p["divergence"]["near_tie"] for p in result["prompts"])
    assert "drafter and target do not belong together" in ran.err


def test_everything_and_a_reference(
    fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    """A full run (sampled, long context, sweep), stored; then q8_0 replayed against it, then a worse drafter."""
    pair, stored, prompts = fixtures / "tiny-js", tmp_path / "reference.json", tmp_path / "two.jsonl"
    lines = (pair / "prompts.jsonl").read_text().splitlines()[:2]
    prompts.write_text("\n".join(line.replace("96", "48") for line in lines))
    target = pair / "target-bf16.gguf"
    ran = cli(
        *("validate", drafters["bf16"], target, "--prompts", prompts, "--n-max", "15,4", "--long-context", 512),
        *("-t", 1, "--json", "--save-reference", stored),
    )
    assert ran.code == 0, ran.err
    assert "n-max 15 is more than this drafter's block holds: 7 used" in ran.err
    result = ran.json
    assert [(r["label"], r["n_max"], r["context"]) for r in result["runs"]] == [
        ("sampled", 7, 4096),
        ("long-context", 7, 512),
        ("sweep", 4, 4096),
    ]
    assert len(result["prompts"]) == 2
    assert [p["seed"] for p in result["runs"][0]["prompts"]] == [1, 2]
    assert all(p["identical"] is None for p in result["runs"][0]["prompts"])
    assert 400 < result["runs"][1]["prompts"][0]["prompt_tokens"] < 512
    assert [p["n_max"] for p in result["sweep"]["points"]] == [7, 4]
    assert result["sweep"]["recommended"] in (4, 7)

    again = cli("validate", drafters["q8_0"], target, "--reference", stored, "-t", 1, "--json")
    assert again.code == 0, again.err
    compared = again.json["reference"]
    assert compared["passed"] is True
    assert (compared["same_target"], compared["same_drafter"], compared["differing"]) == (True, False, [])
    assert again.json["settings"]["n_max"] == 7

    data = json.loads(stored.read_text())
    data["accepted"] += 20
    data["prompts"][1]["tokens"][5] += 1
    stored.write_text(json.dumps(data))
    worse = cli("validate", drafters["q8_0"], target, "--reference", stored, "-t", 1)
    assert worse.code == 6
    assert "acceptance fell by" in worse.out
    assert "the text differs from the reference for function findUser(list, key) {" in worse.out


def test_same_seed_same_text(fixtures: Path) -> None:
    from dflash_convert.engine.find import choose
    from dflash_convert.engine.session import start
    from dflash_convert.engine.trace import Launch, Request, Sampling

    launch = Launch(fixtures / "tiny-js" / "target-bf16.gguf", ctx_size=512, threads=1)
    with start(choose(None, None, {"PATH": ""}), launch) as session:
        texts = [session.complete(Request("let x", 32, Sampling(1.0, seed=s))).text for s in (1, 1, 2)]
        likely = session.log_probabilities(session.tokenize("function f("), 5)
    assert texts[0] == texts[1] != texts[2]
    assert len(likely) == 5
    assert all(value <= 0 for value in likely.values())


def test_swapped_files(fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any]) -> None:
    target = fixtures / "tiny-js" / "target-bf16.gguf"
    ran = cli("validate", target, drafters["bf16"])
    assert ran.code == 3
    assert "is a qwen3 model, not a drafter" in ran.err
    assert f"in each other's place: dflash-convert validate {drafters['bf16']} {target}\n" in ran.err
    assert cli("validate", drafters["bf16"], drafters["bf16"]).code == 3


def test_the_runtime_names_a_foreign_tensor(
    fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any], tmp_path: Path
) -> None:
    """A tensor that llama.cpp does not claim: refused unseen; forced, its loader refuses it, with the reason told."""
    bad = tmp_path / "dflash-bad.gguf"
    bad.write_bytes(drafters["bf16"].read_bytes().replace(b"blk.0.attn_v.weight", b"blk.0.attn_x.weight"))
    call = ("validate", bad, fixtures / "tiny-js" / "target-bf16.gguf", "--quick", "--json", "-t", 1, "--set", "prose")
    ran = cli(*call)
    assert ran.code == 4
    assert "do not belong together: unclaimed-tensors (drafter blk.0.attn_x.weight" in ran.err
    assert "--force-pair runs the pair anyway" in ran.err
    ran = cli(*call, "--force-pair")
    assert ran.code == 7
    assert ran.json["verdict"] == "engine-failure"
    assert ran.json["failure"]["kind"] == "load"
    assert "36 tensors and llama.cpp claims 35" in ran.err

"""The trained pair in a real llama-server (``make hardware LLAMA_SERVER=PATH``), on its GPU if it has one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.engine import external

SERVER = os.environ.get("DFLASH_LLAMA_SERVER")
pytestmark = pytest.mark.skipif(not SERVER, reason="needs a llama-server: DFLASH_LLAMA_SERVER=PATH")

Validate = Callable[..., Any]


@pytest.fixture(scope="module")
def devices() -> tuple[str, ...]:
    """Names of the server's devices, without their sizes."""
    assert SERVER is not None
    return tuple(line.split(":")[0] for line in external.info(SERVER, "the environment").devices)


@pytest.fixture
def gpu(devices: tuple[str, ...]) -> str:
    if not devices:
        pytest.skip("this llama-server has no device but the CPU")
    return devices[0]


@pytest.fixture
def validate(fixtures: Path, drafters: dict[str, Path], cli: Callable[..., Any]) -> Validate:
    pair = fixtures / "tiny-js"

    def run(*more: object, kind: str = "bf16", target: Path = pair / "target-bf16.gguf") -> Any:
        return cli("validate", drafters[kind], target, "--prompts", pair / "prompts.jsonl", "--quick", "--json", *more)

    return run


def shares_the_trace(ran: Any, accepted: int = 869, drafted: int = 1811) -> None:
    """As accepted as in the official implementation; texts differ, if at all, where the target itself hesitates."""
    assert ran.code == 0, ran.err
    result = ran.json
    assert result["total"]["acceptance"] == pytest.approx(accepted / drafted, abs=0.01)
    assert result["engine"]["kind"] == "llama-server"
    assert all(p["divergence"] is None or p["divergence"]["near_tie"] for p in result["prompts"])


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8_0"])
def test_acceptance_is_that_of_the_trace(validate: Validate, kind: str) -> None:
    shares_the_trace(validate(kind=kind))


def test_both_models_on_the_named_device(validate: Validate, gpu: str) -> None:
    shares_the_trace(validate("--device", gpu, "--spec-draft-device", gpu, "-ngl", 99, "--", "-fa", "on"))


@pytest.mark.parametrize("options", [("-ngl", 0), ("--device", "none")], ids=str)
def test_the_target_on_the_cpu(validate: Validate, gpu: str, options: tuple[object, ...]) -> None:
    shares_the_trace(validate(*options))


def test_a_run_stored_here_is_replayed_in_the_embedded_engine(
    validate: Validate,
    fixtures: Path,
    drafters: dict[str, Path],
    cli: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("xllamacpp")
    stored = tmp_path / "reference.json"
    shares_the_trace(validate("--save-reference", stored))
    monkeypatch.delenv("DFLASH_LLAMA_SERVER")
    target = fixtures / "tiny-js" / "target-bf16.gguf"
    ran = cli("validate", drafters["q8_0"], target, "--reference", stored, "--quick", "--json", "-t", 1)
    assert ran.code == 0, ran.err
    assert ran.json["engine"]["kind"] == "embedded"
    assert ran.json["reference"]["passed"] is True


@pytest.mark.shared
def test_a_wrong_target_is_broken_here_too(validate: Validate, shared: Path) -> None:
    ran = validate(target=shared / "pairs" / "tiny-js" / "other-target-bf16.gguf")
    assert (ran.code, ran.json["verdict"]) == (6, "broken")


def test_a_device_that_is_not_there_is_named(validate: Validate) -> None:
    ran = validate("--device", "CUDA63")
    assert ran.code == 7
    assert "CUDA63" in ran.err


def test_a_drafter_away_from_the_head_it_borrows_is_explained(validate: Validate, gpu: str) -> None:
    ran = validate("--spec-draft-device", "none")
    assert ran.code == 7
    assert f"needs output.weight on the device of the drafter, and it lies on {gpu}" in ran.err

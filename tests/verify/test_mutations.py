"""Every known mistake is caught, and which tool catches which is written down in mutations.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mutations import MUTATIONS, without_provenance
from verify_files import Keys, Tensors, rewrite

from dflash_convert.pairing import check, open_pair
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify

Convert = Callable[[str], Path]


def mutate(converted: Convert, tmp_path: Path, name: str, *, foreign: bool = False) -> Path:
    def change(keys: Keys, tensors: Tensors) -> None:
        if foreign:
            without_provenance(keys, tensors)
        MUTATIONS[name].change(keys, tensors)

    return rewrite(converted("F32"), tmp_path / "dflash-target-F32.gguf", change)


def test_nobody_complains_of_the_sound_file(fixtures: Path, converted: Convert, tmp_path: Path) -> None:
    pair = fixtures / "tiny-js"
    sound = rewrite(converted("F32"), tmp_path / "dflash-target-F32.gguf", without_provenance)
    assert check(*open_pair(sound, pair / "target-bf16.gguf")) == []
    assert verify(sound, pair / "drafter", Target.read(pair / "target")).passed


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("name", MUTATIONS)
def test_check_catches(fixtures: Path, converted: Convert, tmp_path: Path, name: str, foreign: bool) -> None:
    path = mutate(converted, tmp_path, name, foreign=foreign)
    expected = MUTATIONS[name].foreign if foreign else MUTATIONS[name].check
    names = [finding.name for finding in check(*open_pair(path, fixtures / "tiny-js" / "target-bf16.gguf"))]
    assert expected in names if expected else names == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_verify_catches_all(fixtures: Path, converted: Convert, tmp_path: Path, name: str) -> None:
    pair = fixtures / "tiny-js"
    path = mutate(converted, tmp_path, name, foreign=True)
    assert not verify(path, pair / "drafter", Target.read(pair / "target")).passed


def test_a_lost_sliding_window_is_caught(fixtures: Path, tmp_path: Path) -> None:
    from dflash_convert.conversion import Options, Source, prepare, write

    pair = fixtures / "tiny-js"
    drafter = tmp_path / "drafter"
    shutil.copytree(pair / "drafter", drafter)
    config = json.loads((drafter / "config.json").read_text(encoding="utf-8"))
    config |= {"use_sliding_window": True, "sliding_window": 64}
    config["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"]
    (drafter / "config.json").write_text(json.dumps(config), encoding="utf-8")
    sound = tmp_path / "sound.gguf"
    write(prepare(Source(drafter), Target.read(pair / "target"), Options(outtypes=("BF16",))), [sound])

    def lose(keys: Keys, tensors: Tensors) -> None:
        del keys["dflash.attention.sliding_window"]
        del keys["dflash.attention.sliding_window_pattern"]

    lost = verify(rewrite(sound, tmp_path / "lost.gguf", lose), drafter, Target.read(pair / "target"))
    assert verify(sound, drafter, Target.read(pair / "target")).passed
    assert lost.differences == (
        "key dflash.attention.sliding_window is missing, expected 64",
        "key dflash.attention.sliding_window_pattern is missing, expected [True, True, False]",
    )


@pytest.fixture(scope="module")
def acceptance(fixtures: Path) -> Callable[[Path], float]:
    """Acceptance on the twelve prompts, 48 tokens each; -1 when the engine refuses the file."""
    pytest.importorskip("xllamacpp", reason="needs the embedded engine")
    from dflash_convert.validation import run
    from dflash_convert.validation.options import Options

    pair = fixtures / "tiny-js"

    def measure(path: Path) -> float:
        options = Options(
            path,
            pair / "target-bf16.gguf",
            prompts=pair / "prompts.jsonl",
            quick=True,
            n_max=(7,),
            n_predict=48,
            threads=1,
            force_pair=True,
        )
        result = run.validate(run.prepare(options))
        return -1.0 if result.failure else result.total.acceptance

    return measure


@pytest.fixture(scope="module")
def sound_acceptance(acceptance: Callable[[Path], float], converted: Convert) -> float:
    return acceptance(converted("F32"))


@pytest.mark.engine
@pytest.mark.parametrize("name", MUTATIONS)
def test_validate_catches(
    acceptance: Callable[[Path], float], sound_acceptance: float, converted: Convert, tmp_path: Path, name: str
) -> None:
    from dflash_convert.validation.result import Thresholds

    assert sound_acceptance > 0.45
    measured = acceptance(mutate(converted, tmp_path, name))
    fell = sound_acceptance - measured > Thresholds().tolerance
    assert fell is MUTATIONS[name].validate, (measured, sound_acceptance)

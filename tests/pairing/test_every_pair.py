"""Every drafter with every target, as directories, as written files and as a target's GGUF: decided right.

What a pair must be refused for first is worked out here from the cases' own configs, not from the rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pair_cases import (
    Cases,
    cached_vocabularies,
    write_fixture_cases,
    write_header,
    write_parity_cases,
    write_target,
)

import dflash_convert.pairing.drafters
import dflash_convert.pairing.targets
import dflash_convert.vocab.copied
from dflash_convert.checkpoint import read_config
from dflash_convert.container.reader import open_gguf
from dflash_convert.conversion import Options, Source, prepare
from dflash_convert.errors import PairingError
from dflash_convert.pairing import DrafterView, Finding, TargetView, check, errors_of
from dflash_convert.pairing.drafters import drafter_directory, drafter_gguf
from dflash_convert.pairing.targets import target_directory, target_gguf
from dflash_convert.target import Target
from dflash_convert.vocab import load_vocabulary

pytestmark = pytest.mark.shared
UNTAPPED = "DeepseekV3ForCausalLM"  # llama.cpp exports no layer inputs of it


@dataclass(frozen=True)
class Side:
    """What the test itself knows of a drafter or target: from config.json, read by hand."""

    vocab: int
    depth: int | None
    architecture: str


def _side(raw: dict[str, Any], depth: str) -> Side:
    inner = raw | raw.get("text_config", {}) | raw.get("transformer_layer_config", {})
    return Side(inner["vocab_size"], inner.get(depth), raw["architectures"][0])


def first_reason(drafter: Side, target: Side) -> str | None:
    """Another vocabulary, then another depth, then a target that cannot be tapped."""
    if drafter.vocab != target.vocab:
        return "vocabulary-size"
    if drafter.depth is not None and drafter.depth != target.depth:
        return "target-depth"
    if drafter.architecture == "LlamaForCausalLMEagle3" and target.depth == 6:
        return "unconvertible"  # its default taps are not distinct in six layers
    return "target-architecture" if target.architecture == UNTAPPED else None


@pytest.fixture(scope="module")
def cases(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    patch, cached = pytest.MonkeyPatch(), cached_vocabularies(load_vocabulary)
    for module in (dflash_convert.vocab.copied, dflash_convert.pairing.targets, dflash_convert.pairing.drafters):
        patch.setattr(module, "load_vocabulary", cached)
    yield write_parity_cases(shared, tmp_path_factory.mktemp("pairs"))
    patch.undo()


@pytest.fixture(scope="module")
def sides(cases: Cases) -> tuple[dict[str, Side], dict[str, Side]]:
    def read(name: str, role: str, depth: str) -> Side:
        return _side(json.loads((cases[name] / role / "config.json").read_text()), depth)

    drafters = {name: read(name, "drafter", "num_target_layers") for name in cases}
    return drafters, {name: read(name, "target", "num_hidden_layers") for name in cases}


@pytest.fixture(scope="module")
def targets(cases: Cases) -> dict[str, TargetView]:
    return {name: target_directory(Target.read(path / "target")) for name, path in cases.items()}


@pytest.fixture(scope="module")
def files(cases: Cases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DrafterView]:
    """Every drafter converted for its own target; the one that cannot be tapped is forced."""
    root, found = tmp_path_factory.mktemp("files"), {}
    for name, path in cases.items():
        options = Options(outtypes=("bf16",), force_pair=name == "dflash_deepseek")
        conversion = prepare(Source(path / "drafter"), Target.read(path / "target"), options)
        (root / name).mkdir()
        found[name] = drafter_gguf(open_gguf(write_header(conversion, conversion.default_paths(root / name)[0])))
    return found


def test_directories(
    cases: Cases, sides: tuple[dict[str, Side], dict[str, Side]], targets: dict[str, TargetView]
) -> None:
    refused = 0
    for drafter, path in cases.items():
        for target in cases:
            expected = first_reason(sides[0][drafter], sides[1][target])
            view = drafter_directory(path / "drafter", Target.read(cases[target] / "target"))
            decided(check(view, targets[target]), expected, drafter, target)
            refused += expected == "vocabulary-size"
    assert refused == 192


def decided(findings: list[Finding], expected: str | None, drafter: str, target: str) -> None:
    errors = [finding.name for finding in errors_of(findings)]
    assert errors[:1] == ([] if expected is None else [expected]), (drafter, target, findings)
    if expected in ("vocabulary-size", "target-depth"):
        assert "most likely the wrong target" in findings[0].cure


def test_written_files_and_directories(
    sides: tuple[dict[str, Side], dict[str, Side]], targets: dict[str, TargetView], files: dict[str, DrafterView]
) -> None:
    for drafter, view in files.items():
        for target, other in targets.items():
            decided(check(view, other), reason_of_file(sides, drafter, target), drafter, target)


def reason_of_file(sides: tuple[dict[str, Side], dict[str, Side]], drafter: str, target: str) -> str | None:
    """A file knows the depth of the target it was converted for, whether its config stated one or not."""
    made_for = Side(sides[0][drafter].vocab, sides[1][drafter].depth, "")
    return first_reason(made_for, sides[1][target])


def test_written_files_and_targets_of_llama_cpp(
    cases: Cases,
    sides: tuple[dict[str, Side], dict[str, Side]],
    files: dict[str, DrafterView],
    tmp_path: Path,
) -> None:
    for target, path in cases.items():
        raw = read_config(path / "target")
        vocabulary = dflash_convert.vocab.copied.load_vocabulary(path / "target", vocab_size=sides[1][target].vocab)
        view = target_gguf(open_gguf(write_target(tmp_path / f"{target}.gguf", raw, vocabulary)))
        for drafter, file in files.items():
            decided(check(file, view), reason_of_file(sides, drafter, target), drafter, target)


def test_convert_refuses_what_check_refuses(
    cases: Cases, sides: tuple[dict[str, Side], dict[str, Side]], targets: dict[str, TargetView]
) -> None:
    for drafter, path in cases.items():
        for target, other in cases.items():
            expected = first_reason(sides[0][drafter], sides[1][target])
            source = Source(path / "drafter"), Target.read(other / "target")
            if expected is None:
                assert errors_of(prepare(*source, Options()).findings) == []
            elif expected == "unconvertible":
                with pytest.raises(Exception, match="not three distinct layers"):
                    prepare(*source, Options())
            else:
                with pytest.raises(PairingError, match=f"do not belong together: {expected} "):
                    prepare(*source, Options())


def test_a_forced_pair_says_so_in_the_file(cases: Cases, targets: dict[str, TargetView], tmp_path: Path) -> None:
    source = Source(cases["dflash_swa_gemma4"] / "drafter"), Target.read(cases["dflash_qwen3"] / "target")
    conversion = prepare(*source, Options(force_pair=True))
    view = drafter_gguf(open_gguf(write_header(conversion, tmp_path / "dflash-x.gguf")))
    findings = check(view, targets["dflash_qwen3"])
    decided(findings, "vocabulary-size", "dflash_swa_gemma4", "dflash_qwen3")
    (forced,) = [finding for finding in findings if finding.name == "forced-pair"]
    assert (forced.severity, forced.drafter) == ("warning", ["vocabulary-size"])
    plain = prepare(*source, Options(force_pair=True, plain=True))
    assert not any(kv.name.startswith("dflash_convert.") for kv in plain.files[0].keys)


def test_the_fixtures_pairs(fixtures: Path, tmp_path: Path) -> None:
    """Same vocabulary, width and taps: only depth (the trained target has 6 layers) and Gemma's graph tell."""
    cases = write_fixture_cases(fixtures, tmp_path) | {"tiny-js": fixtures / "tiny-js"}
    targets = {name: target_directory(Target.read(path / "target")) for name, path in cases.items()}
    for drafter, path in cases.items():
        config = read_config(path / "drafter")
        stated = config.get("num_target_layers")
        for target, other in cases.items():
            view = drafter_directory(path / "drafter", Target.read(other / "target"))
            errors = [finding.name for finding in errors_of(check(view, targets[target]))]
            depth = 6 if target == "tiny-js" else 8
            if stated is not None and stated != depth:
                expected = ["target-depth"]
            elif drafter == "gemma4_assistant":
                expected = [] if target == "gemma4_assistant" else ["target-architecture"]
            elif drafter == "eagle3" and depth == 6:
                expected = ["unconvertible"]  # default taps of six layers
            elif drafter.startswith("deepseek_v4") and target == "gemma4_assistant":
                expected = ["embedding-scale"]  # Gemma's factor, which this family never reads
            else:
                expected = []
            assert errors[:1] == expected, (drafter, target, errors)

"""Right conversions of six families with one mistake each: verify catches all, check what the header can show.

What is left shows in the weights alone, or in a key that any value fits: with the checkpoint at hand verify finds it,
without it only validate can.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from family_mutations import AbsentError, mutations
from pair_cases import write_fixture_cases
from verify_files import rewrite

from dflash_convert.container.reader import open_gguf
from dflash_convert.conversion import Options, Source, prepare, write
from dflash_convert.pairing import check
from dflash_convert.pairing.drafters import drafter_gguf
from dflash_convert.pairing.targets import target_directory
from dflash_convert.pairing.view import TargetView
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify

# values of weights, and keys that any plausible value fits
COMMON = {
    "context x 2",
    "epsilon x 10",
    "attn_q.weight x 0.999",
    "ffn_down.weight x 0.999",
    "output_norm.weight x 0.999",
    "attn_output.weight turned",
    "ffn_up.weight turned",
    "gate and up swapped",
    "norms swapped",
    "rows negated",
    "norms of one",
    "a row of zeros",
    "one bit",
    "one NaN",
}
FUSED = {"fc.weight x 0.999", "keys and values swapped"}
BLOCK = FUSED | {"layers swapped", "block x 2", "rotated dimensions", "logit scale", "activation gelu"}
SPARK = BLOCK | {"block of 1", "causal", "slot rule", "markov_w2 x 0.999"}
UNSEEN = {
    # the last of 512 tokens is padding: a vocabulary without it drafts the same
    "dflash_window_causal": COMMON | BLOCK | {"causality flipped", "window / 8", "a token lost"},
    "dflash2": COMMON
    | BLOCK
    | {"causality flipped", "selector_top_k / 2", "selector_successor turned", "codebooks swapped"},
    "dspark_deepspec": COMMON | SPARK | {"Markov tables swapped"},
    "dspark_speculators": COMMON | SPARK | {"d2t another token"},
    "eagle3_speculators": COMMON | FUSED | {"rotated dimensions / 2", "norm before residual", "d2t another token"},
    # an assistant reads the target's keys and values, whose own sizes no view of a target holds
    "gemma4_assistant": COMMON
    | {"attention.head_count_kv x 2", "rope base of windows x 10", "rotated dimensions / 2", "window / 8"}
    | {"shared layers", "layers swapped", "pre_projection x 0.999"},
}


@dataclass(frozen=True)
class Sound:
    """A right file, its checkpoint, and what check says of it."""

    file: Path
    drafter: Path
    target: Target
    view: TargetView
    told: frozenset[str]


@pytest.fixture(scope="module")
def sound(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sound]:
    root, found = tmp_path_factory.mktemp("sound"), {}
    cases = write_fixture_cases(fixtures, tmp_path_factory.mktemp("cases"))
    for name in UNSEEN:
        drafter, target = cases[name] / "drafter", Target.read(cases[name] / "target")
        conversion = prepare(Source(drafter), target, Options(outtypes=("F32",)))
        (root / name).mkdir()
        (one,) = write(conversion, conversion.default_paths(root / name), threads=1)
        view = target_directory(target)
        told = frozenset(map(repr, check(drafter_gguf(open_gguf(one.path)), view)))
        found[name] = Sound(one.path, drafter, target, view, told)
    return found


def mutated(sound: Sound, directory: Path) -> Iterator[tuple[str, Path]]:
    for name, change in mutations():
        try:
            yield name, rewrite(sound.file, directory / sound.file.name, change)
        except AbsentError:
            continue


@pytest.mark.parametrize("family", UNSEEN)
def test_verify_catches_all_and_check_what_the_header_shows(
    family: str,
    sound: dict[str, Sound],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DFLASH_TOKENIZER_CACHE", str(tmp_path / "tokenizers"))  # read again each time
    right = sound[family]
    assert verify(right.file, right.drafter, right.target).passed
    names, missed, unseen = [], [], set()
    for name, path in mutated(right, tmp_path):
        names.append(name)
        if verify(path, right.drafter, right.target).passed:
            missed.append(name)
        if right.told.issuperset(map(repr, check(drafter_gguf(open_gguf(path)), right.view))):
            unseen.add(name)
    with capsys.disabled():
        sys.stdout.write(f"\n{family}: {len(names)} mutations, verify catches {len(names) - len(missed)}, check ")
        sys.stdout.write(f"{len(names) - len(unseen)}; without the checkpoint only validate can see: ")
        sys.stdout.write(", ".join(sorted(unseen)) + "\n")
    assert missed == []
    assert unseen == UNSEEN[family]
    assert len(names) >= 40
    assert len(set(names)) == len(names)

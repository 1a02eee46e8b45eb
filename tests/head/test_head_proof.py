"""check and verify on heads of the drafter's own: each mistake has its own sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from head_files import PAIR, TARGET

from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.head.build import Head
from dflash_convert.pairing import check, open_pair
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify

IDS = np.arange(100, 400, dtype=np.int64)


@pytest.fixture
def made(drafter: Gguf, make: Callable[..., Gguf]) -> Gguf:
    return make(drafter, Head(IDS))


def patched(gguf: Gguf, tensor: str, data: bytes, tmp_path: Path) -> Path:
    place = tmp_path / f"dflash-patched-{tensor}.gguf"
    shutil.copy(gguf.path, place)
    with place.open("r+b") as file:
        file.seek(gguf.tensors[tensor].offset)
        file.write(data)
    return place


def errors(path: Path) -> list[str]:
    return [f"{f.name}: {f.drafter} {f.cure}" for f in check(*open_pair(path, TARGET)) if f.severity == "error"]


def test_a_right_head_passes_check_and_verify(made: Gguf) -> None:
    assert errors(made.path) == []
    result = verify(made.path, PAIR / "drafter", Target.read(PAIR / "target", gguf=TARGET))
    assert result.differences == ()
    assert {"output.weight", "d2t"} <= {report.name for report in result.tensors if report.status == "equal"}


def test_without_the_targets_weights_verify_says_what_it_did_not_compare(made: Gguf) -> None:
    result = verify(made.path, PAIR / "drafter", Target.read(PAIR / "target"))
    assert result.passed
    assert any("output.weight: the target's rows are not available" in note.text for note in result.notes)
    assert "output.weight" not in {report.name for report in result.tensors}


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_encoded_rows_are_compared_with_the_targets(drafter: Gguf, make: Callable[..., Gguf], kind: str) -> None:
    made = make(drafter, Head(IDS, head_type=kind))
    result = verify(made.path, PAIR / "drafter", Target.read(PAIR / "target", gguf=TARGET))
    assert result.differences == ()


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (IDS - np.arange(IDS.size), "offsets where absolute ids belong|both to token"),
        (np.where(IDS == 200, 201, IDS), "both to token 201"),
        (np.where(IDS == 399, 512, IDS), "to token 512 of 512"),
        (np.where(IDS == 100, -1, IDS), "to token -1"),
    ],
)
def test_a_wrong_map_is_refused_by_check(made: Gguf, tmp_path: Path, ids: np.ndarray, text: str) -> None:
    import re

    found = errors(patched(made, "d2t", ids.astype("<i8").tobytes(), tmp_path))
    assert any(re.search(text, each) for each in found), found


def test_rows_that_were_moved_are_told(made: Gguf, tmp_path: Path) -> None:
    """Rows and ids together would be right in any order; head writes only one."""
    swapped = IDS.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    place = patched(made, "d2t", swapped.astype("<i8").tobytes(), tmp_path)
    found = check(*open_pair(place, TARGET))
    assert [(f.name, f.severity, f.drafter) for f in found if f.name == "reduced-vocabulary"] == [
        ("reduced-vocabulary", "warning", "d2t not ascending")
    ]


def test_a_head_of_another_target_is_refused(made: Gguf, tmp_path: Path) -> None:
    noise = (np.random.default_rng(0).integers(0x3C00, 0x3D00, (IDS.size, 128)) ^ 0x8000).astype("<u2")
    found = errors(patched(made, "output.weight", noise.tobytes(), tmp_path))
    assert any(each.startswith("own-head") for each in found), found


def test_shifted_rows_are_a_difference_of_verify(made: Gguf, tmp_path: Path) -> None:
    place = patched(made, "d2t", (IDS + 1).astype("<i8").tobytes(), tmp_path)
    result = verify(place, PAIR / "drafter", Target.read(PAIR / "target", gguf=TARGET))
    assert any("output.weight" in each for each in result.differences)
    assert open_gguf(place).tensors["d2t"].type.name == "I64"

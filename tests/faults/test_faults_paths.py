"""Output paths that must not be written: the input itself, a directory, an existing file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def pair(fixtures: Path, tmp_path: Path) -> Path:
    """A copy of the bundled pair that may be damaged."""
    shutil.copytree(fixtures / "tiny-js" / "drafter", tmp_path / "drafter")
    shutil.copytree(fixtures / "tiny-js" / "target", tmp_path / "target")
    return tmp_path


def convert(run: Run, pair: Path, output: Path, *more: str) -> Any:
    return run("convert", pair / "drafter", "--target-model-dir", pair / "target", "-o", output, "-q", *more)


@pytest.mark.parametrize("link", ["same", "symlink", "hard link"])
@pytest.mark.parametrize("name", ["drafter/model.safetensors", "drafter/config.json"])
def test_convert_onto_its_input(name: str, link: str, run: Run, pair: Path) -> None:
    source = pair / name
    before = source.read_bytes()
    output = source if link == "same" else pair / "x.gguf"
    if link != "same":
        (os.symlink if link == "symlink" else os.link)(source, output)
    ended = convert(run, pair, output, "--force")
    assert ended.code == 9
    assert "is also the input" in ended.err
    assert source.read_bytes() == before


@pytest.mark.parametrize("link", ["same", "symlink", "hard link", "other spelling"])
def test_quantize_onto_its_input(link: str, run: Run, converted: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    shutil.copy(converted, source)
    before = source.read_bytes()
    output = {"same": source, "other spelling": tmp_path / "." / ".." / tmp_path.name / "in.gguf"}.get(link)
    if output is None:
        output = tmp_path / "x.gguf"
        (os.symlink if link == "symlink" else os.link)(source, output)
    ended = run("quantize", source, output, "q8_0", "--force", "-q")
    assert ended.code == 9
    assert "is also the input" in ended.err
    assert source.read_bytes() == before


def test_output_is_a_directory(run: Run, converted: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").mkdir()
    ended = run("quantize", converted, tmp_path / "x.gguf", "q8_0", "--force", "-q")
    assert ended.code == 9
    assert "is a directory" in ended.err
    assert list((tmp_path / "x.gguf").iterdir()) == []


@pytest.mark.parametrize("what", ["file", "dangling link"])
def test_an_existing_output_stays_without_force(what: str, run: Run, pair: Path) -> None:
    output = pair / "x.gguf"
    if what == "file":
        output.write_bytes(b"old")
    else:
        output.symlink_to("nowhere")
    ended = convert(run, pair, output)
    assert ended.code == 9
    assert "exists already" in ended.err
    assert "--force" in ended.err
    assert output.read_bytes() == b"old" if what == "file" else output.is_symlink()


def test_force_replaces_a_link_not_what_it_points_to(run: Run, pair: Path) -> None:
    (pair / "precious").write_bytes(b"precious")
    (pair / "x.gguf").symlink_to("precious")
    assert convert(run, pair, pair / "x.gguf", "--force").code == 0
    assert (pair / "precious").read_bytes() == b"precious"
    assert not (pair / "x.gguf").is_symlink()


def test_missing_directories(run: Run, pair: Path) -> None:
    ended = convert(run, pair, pair / "no" / "such" / "x.gguf")
    assert ended.code == 9
    assert "is not a directory" in ended.err
    assert not (pair / "no").exists()


def test_a_failure_keeps_every_output_of_a_run(run: Run, pair: Path) -> None:
    """Two types in one run: when the second file cannot be finished, the first is not published either."""
    real, calls = os.fsync, [0]

    def second_fails(fd: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(5, "Input/output error")
        real(fd)

    (pair / "out").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", second_fails)
        ended = convert(run, pair, pair / "out", "-t", "bf16", "-t", "q8_0")
    assert ended.code == 9
    assert list((pair / "out").iterdir()) == []


def test_a_bad_weight_keeps_the_old_file(run: Run, pair: Path) -> None:
    """NaN in the last tensor is found while writing."""
    weights = pair / "drafter" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = b"\xff\xff"
    weights.write_bytes(data)
    (pair / "x.gguf").write_bytes(b"old")
    ended = convert(run, pair, pair / "x.gguf", "--force", "-t", "q8_0")
    assert ended.code == 3
    assert "holds NaN or Inf" in ended.err
    assert (pair / "x.gguf").read_bytes() == b"old"
    assert sorted(p.name for p in pair.iterdir()) == ["drafter", "target", "x.gguf"]

"""Where no output can be is told as an output's trouble, and before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_convert import llama, output
from dflash_convert.cli import main
from dflash_convert.errors import ConfigError, OutputError
from dflash_convert.head.build import suffix
from dflash_convert.naming import MAX_NAME, default_name
from dflash_convert.release.plan import read_release
from quant.recipe import FTYPES

LINES = {
    "convert": "convert nowhere --target-model-dir nowhere --force -o {}",
    "convert, a plan": "convert nowhere --target-model-dir nowhere --dry-run -o {}",
    "quantize": "quantize nowhere {} q8_0 --force",
    "head": "head nowhere nowhere {} --full --force",
    "validate": "validate nowhere nowhere --force --save {}",
    "compare": "compare nowhere ngram-mod --force --html {}",
    "tune": "tune nowhere nowhere --force --preset {}",
}
READ_FIRST = ("quantize", "head")  # whether a source exists costs nothing


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("kind", ["a pipe", "a device", "too long"])
def test_refused_before_anything_is_read(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.gguf")
    place = {"a pipe": "pipe.gguf", "a device": "/dev/null", "too long": f"{'x' * 300}.gguf"}[kind]
    words = LINES[name].format(place).split()
    if name in READ_FIRST:
        Path("empty").touch()
        words = [word if word != "nowhere" else "empty" for word in words]
    with pytest.raises(SystemExit) as ended:
        main(words)
    err = capsys.readouterr().err
    told = f"{place} cannot be written: File name too long" if kind == "too long" else f"{place} is {kind}, which"
    assert (ended.value.code, f"ERROR {told}" in err) == (9, True), err


@pytest.mark.parametrize("check", [output.check_output_path, output.refuse_taken, output.check_directory])
def test_a_name_that_is_too_long_is_an_outputs_trouble(check: Callable[..., None], tmp_path: Path) -> None:
    given = {"check_output_path": {"force": True}, "refuse_taken": {"inputs": [], "force": True, "other": ""}}
    with pytest.raises(OutputError, match="File name too long") as caught:
        check(tmp_path / ("é" * 150), **given.get(check.__name__, {}))
    assert "255 bytes" in str(caught.value.tip)


def test_every_default_name_fits_that_a_target_name_may_have() -> None:
    variants = [variant for row in llama.DRAFTERS for variant in row.variants]
    names = [
        default_name(variant, "x" * MAX_NAME, outtype, ending)
        for variant in variants
        for outtype in FTYPES
        for ending in ("", suffix(None), suffix(999_999_999))
    ]
    assert max(map(len, names)) <= 255


@pytest.mark.parametrize("line", ["convert nowhere --target-model-dir nowhere", "batch release.toml"])
def test_the_limit_of_a_target_name_is_told(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "é" * 101
    toml = f'types=["F16"]\n[[pair]]\nname="a"\ndrafter="d"\ntarget="t"\ntarget_name="{name}"'
    Path("release.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), *(["--target-name", name] if "convert" in line else [])])
    assert ended.value.code == (2 if "convert" in line else 3)
    assert "has 202 bytes, at most 200 are possible" in capsys.readouterr().err
    Path("release.toml").write_text(toml.replace('"a"', f'"{"b" * 201}"').replace(name, "c"), encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be a directory name"):
        read_release(Path("release.toml"))

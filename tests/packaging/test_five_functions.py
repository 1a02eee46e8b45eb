"""``import dflash_convert``: five typed functions that load at their first use, under names that stay theirs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import dflash_convert
from dflash_convert import api
from dflash_convert.doctor import kernels
from dflash_convert.errors import PairingError

ROOT = Path(__file__).resolve().parents[2]
VERBS = ("check", "convert", "quantize", "validate", "verify")
HEAVY = ("numpy", "click", "gguf", "tokenizers", "safetensors", "huggingface_hub", "dflash_convert.api")


def test_the_import_loads_nothing_that_takes_time() -> None:
    code = f"import sys, dflash_convert; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", VERBS)
def test_each_name_is_a_typed_function(name: str) -> None:
    function = getattr(dflash_convert, name)
    assert function is getattr(api, name)
    assert inspect.isfunction(function)
    hints = typing.get_type_hints(function)
    assert set(inspect.signature(function).parameters) | {"return"} == set(hints)
    assert inspect.getdoc(function)
    assert name in dflash_convert.__all__


def test_no_module_hides_a_function() -> None:
    """A submodule of the same name would take its place as soon as anyone imported it."""
    modules = {module.name for module in pkgutil.iter_modules(dflash_convert.__path__)}
    assert not modules & set(VERBS)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'convrt'"):
        _ = dflash_convert.convrt
    assert importlib.import_module("dflash_convert").__version__


def test_text_paths_and_one_type(fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pair = str(fixtures / "tiny-js")
    made = dflash_convert.convert(f"{pair}/drafter", f"{pair}/target", "q8_0", "out", threads=1)
    assert made.paths == (Path("out/dflash-target-Q8_0.gguf"),)
    both = dflash_convert.convert(f"{pair}/drafter", Path(pair) / "target", ["q8_0", "q4_0"], "both", threads=1)
    assert both.paths[0].read_bytes() == made.paths[0].read_bytes()
    assert len(both.paths) == 2


def test_a_pair_that_does_not_fit(fixtures: Path, tmp_path: Path) -> None:
    """The drafter on both sides: an error is a finding first, and raises on demand."""
    pair = fixtures / "tiny-js"
    (file,) = dflash_convert.convert(pair / "drafter", pair / "target", "q8_0", tmp_path, threads=1).paths
    assert dflash_convert.check(file, pair / "target-bf16.gguf").passed
    found = dflash_convert.check(file, file)
    assert not found.passed
    with pytest.raises(PairingError, match="do not belong together: target-is-drafter"):
        found.raise_for_status()


def test_another_package_named_quant_is_told(tmp_path: Path) -> None:
    assert kernels() == []
    other = tmp_path / "quant" / "__init__.py"
    other.parent.mkdir()
    other.touch()
    (finding,) = kernels(str(other))
    assert (finding.severity, finding.name) == ("error", "quant")
    assert str(other) in finding.value

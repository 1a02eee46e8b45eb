"""quantize equals llama-quantize on the bf16 file, and the straight way from the checkpoint gives the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity_files import file_sha256, metadata_of, tensors_of
from test_parity_convert import CASES, UNTAPPED

from dflash_convert import convert
from dflash_convert.plan import TypeOptions
from dflash_convert.quantize import quantize_file
from dflash_convert.target import Target

TYPES = ("q4_0", "q8_0", "q4_k_m", "q5_k_m", "q6_k")


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_quantize_equals_llama_quantize(
    name: str, case: Callable[[str], Path], expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    where, wanted = case(name), expected(name)
    options = convert.Options(outtypes=("bf16",), plain=True, model_name=name, force_pair=name in UNTAPPED)
    conversion = convert.prepare(convert.Source(where / "drafter"), Target.read(where / "target"), options)
    source, output = tmp_path / "bf16.gguf", tmp_path / "out.gguf"
    convert.write(conversion, [source], threads=1)
    for outtype in TYPES:
        reference = wanted[f"quantize:{outtype}"]
        quantize_file(source, output, outtype, TypeOptions(), force=True, threads=1)
        assert tensors_of(output) == reference["tensors"]
        found = metadata_of(output)
        assert {key: found[key] for key in reference["metadata"]} == reference["metadata"]
        assert file_sha256(output) == reference["file_sha256"]
    source.unlink()
    output.unlink()


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_straight_from_the_checkpoint(
    name: str, case: Callable[[str], Path], expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    where, wanted = case(name), expected(name)
    types = ("q4_0", "q4_k_m")
    options = convert.Options(outtypes=types, plain=True, model_name=name, force_pair=name in UNTAPPED)
    conversion = convert.prepare(convert.Source(where / "drafter"), Target.read(where / "target"), options)
    for one in convert.write(conversion, convert.output_paths(conversion, tmp_path), threads=1):
        reference = wanted[f"quantize:{one.outtype.lower()}"]
        assert tensors_of(one.path) == reference["tensors"]
        assert file_sha256(one.path) == reference["file_sha256"]
        one.path.unlink()

"""Whole files equal what llama.cpp's converter and llama-quantize write, byte for byte.

With the real tokenizers beside the checkout everything is compared; from a plain clone small ones stand in for them:
the keys ``tokenizer.*`` and the hash of the whole file are left out there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parity_cases import expected
from parity_files import WHOLE, Files, file_sha256, metadata_of, tensors_of

from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import quantize_file

QUANTIZED = ("q4_0", "q8_0", "q4_k_m", "q5_k_m", "q6_k")


@pytest.mark.shared
def test_plain_files_are_byte_identical(name: str, real: Files) -> None:
    for outtype, path in real.items():
        same(path, reference_of(name, outtype))


@pytest.mark.shared
def test_quantize_equals_llama_quantize(name: str, real: Files, tmp_path: Path) -> None:
    output = tmp_path / "out.gguf"
    for outtype in QUANTIZED:
        quantize_file(real["bf16"], output, outtype, TypeOptions(), force=True, threads=1)
        same(output, expected(name)[f"quantize:{outtype}"])
    output.unlink()


def same(path: Path, reference: dict[str, Any]) -> None:
    """The whole file; where it differs, what differs is shown first."""
    if file_sha256(path) != reference["file_sha256"]:
        found = metadata_of(path)
        assert {key: found.get(key) for key in reference["metadata"]} == reference["metadata"]
        assert [key for key in found if key in reference["metadata"]] == list(reference["metadata"])
        assert tensors_of(path) == reference["tensors"]
        pytest.fail(f"{path.name}: the same keys and tensors, but other bytes in between")


def test_from_a_plain_clone(name: str, small: Files) -> None:
    for outtype, path in small.items():
        reference = reference_of(name, outtype)
        assert tensors_of(path) == reference["tensors"]
        if outtype == "bf16":
            assert beside_the_vocabulary(metadata_of(path)) == beside_the_vocabulary(reference["metadata"])
        if name in WHOLE:
            assert file_sha256(path) == reference["file_sha256"]


def reference_of(name: str, outtype: str) -> dict[str, Any]:
    """The converter's file where it writes the type itself, llama-quantize's otherwise."""
    outputs = expected(name)
    return outputs.get(f"convert:{outtype}") or outputs[f"quantize:{outtype}"]


def beside_the_vocabulary(metadata: dict[str, Any]) -> list[tuple[str, Any]]:
    """In file order."""
    return [(key, value) for key, value in metadata.items() if not key.startswith("tokenizer.")]

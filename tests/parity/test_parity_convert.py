"""Whole files equal what llama.cpp b11434's convert_hf_to_gguf.py writes, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity_files import file_sha256, metadata_of, tensors_of

from dflash_convert import convert
from dflash_convert.target import Target

CASES = (
    "dflash_qwen3",
    "dflash_swa_gemma4",
    "dflash_llama31",
    "dflash_gptoss_yarn",
    "dflash_mrope_qwen35",
    "dflash_spm_llama",
    "dflash_deepseek",
    "dflash_partial_rope_causal",
    "dflash_interleaved_rope_use_swa",
    "dflash_own_embeddings_sharded",
    "dflash2",
    "dspark_qwen3",
    "dspark_speculators_d2t",
    "muse_glimmer",
    "gemma4_dspark",
    "eagle3_llama",
)
UNTAPPED = ("dflash_deepseek",)  # llama.cpp exports no layer inputs of this target: written only when forced
DIRECT = ("bf16", "f16", "q8_0")


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_plain_files_are_byte_identical(
    name: str, case: Callable[[str], Path], expected: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    where, wanted = case(name), expected(name)
    options = convert.Options(outtypes=DIRECT, plain=True, model_name=name, force_pair=name in UNTAPPED)
    conversion = convert.prepare(convert.Source(where / "drafter"), Target.read(where / "target"), options)
    for one in convert.write(conversion, convert.output_paths(conversion, tmp_path), threads=1):
        reference = wanted[f"convert:{one.outtype.lower()}"]
        assert metadata_of(one.path) == reference["metadata"]
        assert list(metadata_of(one.path)) == list(reference["metadata"])
        assert tensors_of(one.path) == reference["tensors"]
        assert file_sha256(one.path) == reference["file_sha256"]
        one.path.unlink()

"""quantize on files: what it refuses, what it copies, requantizing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import quant
from dflash_convert import conversion as convert
from dflash_convert.cli import cli
from dflash_convert.container.reader import open_gguf
from dflash_convert.errors import CheckpointError, FamilyError, OutputError, UsageError
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import quantize_file
from dflash_convert.target import Target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quantize")
    pair = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-js"
    options = convert.Options(outtypes=("bf16", "q8_0"), target_name="t")
    conversion = convert.prepare(convert.Source(pair / "drafter"), Target.read(pair / "target"), options)
    convert.write(conversion, convert.output_paths(conversion, root))
    return root


def test_quantized_sources_need_a_word(made: Path, tmp_path: Path) -> None:
    source, out = made / "dflash-t-Q8_0.gguf", tmp_path / "out.gguf"
    with pytest.raises(CheckpointError, match=r"is Q8_0 already; making it Q4_0 loses twice"):
        quantize_file(source, out, "q4_0", TypeOptions())
    assert not out.exists()
    quantize_file(source, out, "q4_0", TypeOptions(), allow_requantize=True)
    before, after = open_gguf(source), open_gguf(out)
    values = quant.dequantize(np.array(before.data("fc.weight")), "Q8_0")
    assert np.array_equal(after.data("fc.weight"), quant.quantize(values, "Q4_0"))


def test_the_same_type_is_a_copy(made: Path, tmp_path: Path) -> None:
    source, out = made / "dflash-t-Q8_0.gguf", tmp_path / "out.gguf"
    quantize_file(source, out, "Q8_0", TypeOptions())
    before, after = open_gguf(source), open_gguf(out)
    assert all(np.array_equal(before.data(name), after.data(name)) for name in before.tensors)


def test_keys_stay_and_the_file_type_changes(made: Path, tmp_path: Path) -> None:
    source, out = made / "dflash-t-BF16.gguf", tmp_path / "out.gguf"
    quantize_file(source, out, "q4_k_m", TypeOptions())
    before, after = open_gguf(source), open_gguf(out)
    assert set(before.keys) == set(after.keys)
    assert after.get("general.file_type") == 15
    assert list(after.keys)[-2:] == ["general.quantization_version", "general.file_type"]
    same = [k for k in before.keys if k != "general.file_type"]
    assert [before.get(k) for k in same] == [after.get(k) for k in same]


def test_a_target_is_refused(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="architecture 'qwen3' is not a drafter's"):
        quantize_file(fixtures / "tiny-js/target-bf16.gguf", tmp_path / "out.gguf", "q4_0", TypeOptions())


def test_the_input_is_never_the_output(made: Path, tmp_path: Path) -> None:
    source, link = made / "dflash-t-BF16.gguf", tmp_path / "link.gguf"
    link.symlink_to(source)
    for out in (source, link):
        with pytest.raises(OutputError, match="is also the input"):
            quantize_file(source, out, "q4_0", TypeOptions(), force=True)


def test_auto_is_no_type_to_quantize_to(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quantize needs a type"):
        quantize_file(made / "dflash-t-BF16.gguf", tmp_path / "out.gguf", "auto", TypeOptions())


def test_overrides(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    args = ["quantize", str(made / "dflash-t-BF16.gguf"), str(out), "q4_0", "--tensor-type", "attn_v=q8_0", "-q"]
    assert CliRunner().invoke(cli, args, catch_exceptions=False).exit_code == 0
    tensors = open_gguf(out).tensors
    assert {t.type.name for n, t in tensors.items() if n.endswith("attn_v.weight")} == {"Q8_0"}
    assert {t.type.name for n, t in tensors.items() if n.endswith("attn_k.weight")} == {"Q4_0"}


def test_strict_refuses_fallbacks(made: Path, tmp_path: Path) -> None:
    """Rows of 128 do not fill a super-block of 256."""
    with pytest.raises(CheckpointError, match=r"Q4_K_M does not fit every tensor"):
        quantize_file(made / "dflash-t-BF16.gguf", tmp_path / "out.gguf", "q4_k_m", TypeOptions(strict=True))

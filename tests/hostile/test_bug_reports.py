"""Public bug reports that no other test covers, and the table that maps every report to its test.

Numbers are those of docs/bug-reports.md.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
import shared_data

from dflash_convert.cli import main
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import TensorType

ROOT = Path(__file__).resolve().parent.parent.parent

Convert = Callable[..., tuple[int, str, Gguf | None]]
EMPTY: dict[str, Any] = {}
SURVEY = "bug-reports.md"


@pytest.fixture
def convert(fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Convert:
    """convert(case, *options) -> (exit code, stderr, the file) for one of the tiny checkpoints."""

    def run(case: mk.Case, *options: str) -> tuple[int, str, Gguf | None]:
        where = tmp_path / str(len(list(tmp_path.iterdir())))
        drafter, target = mk.write_case(case, where)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(fixtures / "tiny-js" / "target" / name, target / name)
        output = where / "x.gguf"
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(drafter), "--target-model-dir", str(target), "-o", str(output), *options])
        code = ended.value.code
        assert isinstance(code, int)
        assert output.exists() is (code == 0)
        return code, capsys.readouterr().err, open_gguf(output) if code == 0 else None

    return run


def dflash(config: dict[str, Any] = EMPTY, nested: dict[str, Any] = EMPTY, drop: tuple[str, ...] = ()) -> mk.Case:
    case = mk.CASES["dflash"]()
    case.config.update(config)
    case.config["dflash_config"].update(nested)
    for name in drop:
        case.config.pop(name)
    return case


def test_a06_attention_sinks_and_value_scale_are_kept(convert: Convert) -> None:
    case = dflash(nested={"attention_value_scale": 0.75})
    for i in range(mk.LAYERS):
        case.tensors.add(f"layers.{i}.self_attn.attention_sink_bias", mk.HEADS)
    code, _, gguf = convert(case, "-t", "q8_0")
    assert code == 0
    assert gguf is not None
    assert gguf.get("dflash.attention.value_scale") == 0.75
    for i in range(mk.LAYERS):
        sink = gguf.tensors[f"blk.{i}.attn_sinks.weight"]
        assert (sink.shape, sink.type) == ((mk.HEADS,), TensorType.F32)
        wanted = case.tensors.float32(f"layers.{i}.self_attn.attention_sink_bias")
        assert gguf.data(sink.name).view("<f4").reshape(-1).tolist() == wanted.reshape(-1).tolist()


def test_a10_taps_are_shifted_once_and_the_originals_kept(convert: Convert) -> None:
    _, _, gguf = convert(dflash())
    assert gguf is not None
    assert list(gguf.get("dflash.target_layers")) == [tap + 1 for tap in mk.TAPS]
    assert list(gguf.get("dflash_convert.source_taps")) == mk.TAPS
    code, err, _ = convert(dflash(nested={"target_layer_ids": [1, 2, mk.DEPTH]}))
    assert code == 3
    assert str(mk.DEPTH) in err


THETAS: list[tuple[dict[str, Any], tuple[str, ...], float, str]] = [
    ({"rope_parameters": {"rope_theta": 1e7}}, ("rope_theta",), 1e7, ""),
    (
        {"rope_parameters": {"rope_theta": 1e7}, "rope_theta": 1e4},
        (),
        1e7,
        "1e+07 in rope_parameters and 10000 at the top",
    ),
    ({"rope_scaling": {"rope_theta": 1e7, "rope_type": "default"}}, ("rope_theta",), 1e7, ""),
    ({"rope_scaling": None, "rope_theta": 1e7}, (), 1e7, ""),
    ({"text_config": {"rope_parameters": {"rope_theta": 1e7}}}, ("rope_theta",), 1e7, ""),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e7}}}, ("rope_theta",), 1e7, ""),
]


@pytest.mark.parametrize(("config", "drop", "theta", "note"), THETAS)
def test_a18_rope_theta_is_found_and_conflicts_are_told(
    config: dict[str, Any], drop: tuple[str, ...], theta: float, note: str, convert: Convert
) -> None:
    code, err, gguf = convert(dflash(config, drop=drop))
    assert (code, "at the top" in err) == (0, bool(note)), err
    assert note in err
    assert gguf is not None
    assert gguf.get("dflash.rope.freq_base") == theta


def test_a18_no_theta_at_all_is_an_error(convert: Convert) -> None:
    code, err, _ = convert(dflash(drop=("rope_theta",)))
    assert code == 3
    assert "rope_theta is missing" in err


def test_a19_scaling_is_written_whole_or_not_at_all(convert: Convert) -> None:
    _, _, plain = convert(dflash({"rope_scaling": None}))
    yarn = {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
    _, _, scaled = convert(dflash({"rope_scaling": {**yarn, "beta_fast": 32.0, "beta_slow": 1.0}}))
    code, err, _ = convert(dflash({"rope_scaling": {"rope_type": "su", "factor": 2.0}}))
    assert plain is not None
    assert scaled is not None
    assert not [name for name in plain.keys if ".scaling." in name]
    assert {name.rpartition("scaling.")[2]: scaled.get(name) for name in scaled.keys if ".scaling." in name} == {
        "type": "yarn",
        "factor": 64.0,
        "original_context_length": 4096,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": 1.0,
    }
    assert code == 3
    assert "rope_type is 'su'" in err


def test_a22_the_window_pattern_is_one_bool_per_layer(convert: Convert) -> None:
    kinds = ["sliding_attention", "full_attention"]
    _, _, gguf = convert(dflash({"layer_types": kinds, "sliding_window": 2048, "use_sliding_window": True}))
    assert gguf is not None
    assert gguf.get("dflash.attention.sliding_window") == 2048
    assert list(gguf.get("dflash.attention.sliding_window_pattern")) == [True, False]


def test_a24_the_mask_token_is_always_written(convert: Convert) -> None:
    """Nested only, or at the top only; the target's tokenizer names none."""
    top = dflash({"mask_token_id": 298})
    del top.config["dflash_config"]["mask_token_id"]
    for case in (dflash(nested={"mask_token_id": 298}), top):
        _, _, gguf = convert(case)
        assert gguf is not None
        assert gguf.get("tokenizer.ggml.mask_token_id") == 298


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "q4_k_m"])
def test_a30_a_reduced_vocabulary_survives_every_type(kind: str, convert: Convert) -> None:
    """EAGLE-3's own head and its map to the target's tokens: never dropped, the map exact."""
    case = mk.CASES["eagle3"]()
    code, err, gguf = convert(case, "-t", kind)
    assert code == 0, err
    assert gguf is not None
    assert gguf.tensors["output.weight"].shape == (mk.DRAFT_VOCAB, mk.HIDDEN)
    assert gguf.tensors["d2t"].type is TensorType.I64
    offsets = case.tensors["d2t"][1]
    wanted = [int(n) + i for i, n in enumerate(offsets)]
    assert gguf.data("d2t").view("<i8").reshape(-1).tolist() == wanted


def test_a32_own_embeddings_are_kept(convert: Convert) -> None:
    """Whether they equal the target's is not known without its weights, so they are never dropped."""
    case = dflash()
    mk.own_vocabulary(case.tensors)
    _, _, gguf = convert(case)
    assert gguf is not None
    for name, source in (("token_embd.weight", "embed_tokens.weight"), ("output.weight", "lm_head.weight")):
        assert gguf.data(name).tobytes() == case.tensors[source][1].tobytes()


def test_d07_nan_and_infinity_are_found_with_their_place(convert: Convert) -> None:
    """In a norm and in a matrix, for every type: no file is left."""
    for name, pattern in (("layers.1.input_layernorm.weight", 0x7FC0), ("layers.0.mlp.up_proj.weight", 0x7F80)):
        for kind in ("bf16", "f32", "q8_0", "q4_k_m"):
            case = dflash()
            case.tensors[name][1].reshape(-1)[5] = pattern
            code, err, _ = convert(case, "-t", kind)
            assert code == 3
            assert f"tensor '{name}'" in err
            assert "holds NaN or Inf" in err


def test_d09_an_infinite_block_scale_is_not_quantized_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A q8_0 drafter with one scale of infinity: requantizing names the tensor and leaves no file."""
    pair = ROOT / "fixtures" / "tiny-js"
    source = tmp_path / "in.gguf"
    for args in ([str(pair / "drafter"), "--target-model-dir", str(pair / "target"), "-t", "q8_0", "-o", str(source)],):
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert ended.value.code == 0
    info = open_gguf(source).tensors["blk.0.ffn_up.weight"]
    data = bytearray(source.read_bytes())
    data[info.offset : info.offset + 2] = struct.pack("<H", 0x7C00)
    source.write_bytes(data)
    with pytest.raises(SystemExit) as ended:
        main(["quantize", str(source), str(tmp_path / "x.gguf"), "q4_0", "--allow-requantize"])
    assert ended.value.code == 3
    assert "tensor 'blk.0.ffn_up.weight', row 0 holds NaN or Inf" in capsys.readouterr().err
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q6_k"])
def test_d24_byte_order_is_said_everywhere(kind: str) -> None:
    """Rows in the other byte order give the same bytes, or are refused; never other bytes."""
    import quant

    rows = np.random.default_rng(3).standard_normal((4, 256)).astype(np.float32)
    wanted = quant.quantize(rows, kind.upper())
    try:
        got = quant.quantize(rows.astype(">f4"), kind.upper())
    except (quant.QuantError, TypeError, ValueError):
        return
    assert got.tobytes() == wanted.tobytes()


def test_d24_no_file_is_read_in_the_machines_own_order() -> None:
    """Every struct format and numpy dtype for file bytes names its order."""
    for path in [*(ROOT / "dflash_convert").rglob("*.py")]:
        source = path.read_text("utf-8")
        for form in re.findall(r"struct\.(?:Struct|pack|unpack\w*)\(\s*f?\"([^\"]*)\"", source):
            assert form.startswith("<"), f"{path.name}: {form}"


def rows_of_the_table() -> dict[str, str]:
    lines = (ROOT / "docs" / "bug-reports.md").read_text("utf-8").splitlines()
    found = [re.match(r"\| ([A-G]\d\d) \|.*\| ([^|]+) \|$", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def test_every_listed_test_exists() -> None:
    """Each row names a test as ``file::function``, or a section of SECURITY.md that gives the reason."""
    rows = rows_of_the_table()
    assert len(rows) > 100
    security = (ROOT / "SECURITY.md").read_text("utf-8")
    for row, cell in rows.items():
        names = re.findall(r"`([\w/]+\.py)::(\w+)", cell)
        reasons = re.findall(r"\(SECURITY\.md#([\w-]+)\)", cell)
        assert names or reasons, row
        for file, function in names:
            source = (ROOT / "tests" / file).read_text("utf-8")
            assert re.search(rf"def {function}\b", source), f"{row}: {file}::{function}"
        for anchor in reasons:
            headings = [
                re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
                for h in re.findall(r"^#+ (.*)$", security, re.M)
            ]
            assert anchor in headings, f"{row}: {anchor}"


@pytest.mark.skipif(
    shared_data.missing(parts=(SURVEY,)) is not None, reason=f"needs the survey of open reports, ../shared/{SURVEY}"
)
def test_every_open_report_has_a_row() -> None:
    """The survey's areas A to D."""
    survey = (shared_data.SHARED / SURVEY).read_text("utf-8")
    wanted = set(re.findall(r"^\| ([A-D]\d\d) \|", survey, re.MULTILINE))
    assert wanted <= set(rows_of_the_table())

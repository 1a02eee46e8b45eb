"""What becomes of the tensors: all are accounted for, permuted, padded and dequantized as they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Make, Read
from numpy.typing import NDArray

from dflash_convert import conversion as convert
from dflash_convert.checkpoint import Reader, open_checkpoint
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Description, TensorPlan
from dflash_convert.encode.transforms import RowSource, float32, row_count
from dflash_convert.errors import CheckpointError, FamilyError
from dflash_convert.target import Target

Array = NDArray[Any]


def plan_of(description: Description, name: str) -> TensorPlan:
    return next(plan for plan in description.tensors if plan.name == name)


def values_of(plan: TensorPlan, step: int = 7) -> Array:
    """The plan's values, read in pieces of a few rows."""
    if plan.transform.startswith("rope_"):
        step = plan.argument
    with Reader() as reader:
        source = RowSource(reader)
        total = row_count(plan.shape)
        parts = [np.array(source.rows(plan, at, min(at + step, total))) for at in range(0, total, step)]
    rows = np.concatenate(parts)
    return rows if rows.dtype.kind == "i" else float32(rows)


@pytest.mark.parametrize("name", mk.CASES)
def test_every_tensor_is_written_or_skipped_with_a_reason(name: str, read: Read) -> None:
    description = read(name)
    written = [source.name for plan in description.tensors for source in plan.sources]
    skipped = [tensor for tensor, reason in description.skipped if reason]
    assert sorted(written + skipped) == sorted(mk.CASES[name]().tensors)


@pytest.mark.parametrize("name", mk.CASES)
def test_one_foreign_tensor_stops_the_conversion(name: str, read: Read) -> None:
    case = mk.CASES[name]()
    case.tensors.add("foo.bar", 3, 5)
    with pytest.raises(FamilyError, match=r"tensor 'foo\.bar' would keep llama\.cpp from loading"):
        read(case)
    assert plan_of(read(case, keep_unclaimed=True), "foo.bar").shape == (3, 5)


@pytest.mark.parametrize(("dtype", "shape", "what"), [("BF16", (), "a scalar"), ("BOOL", (4,), "of dtype BOOL")])
def test_what_is_no_weight_cannot_be_kept(read: Read, dtype: str, shape: tuple[int, ...], what: str) -> None:
    case = mk.CASES["dflash"]()
    case.tensors["foo.bar"] = (dtype, np.zeros(shape, np.uint16 if dtype == "BF16" else np.uint8))
    with pytest.raises(FamilyError, match=rf"tensor 'foo\.bar' is {what}, which --keep-unclaimed cannot write"):
        read(case, keep_unclaimed=True)


@pytest.mark.parametrize("name", mk.CASES)
def test_one_lost_layer_tensor_stops_the_conversion(name: str, read: Read) -> None:
    case = mk.CASES[name]()
    lost = next(n for n in case.tensors if n.endswith(("mlp.down_proj.weight", "shared_experts.w2.weight")))
    del case.tensors[lost]
    case.tensors.pop(lost.removesuffix("weight") + "scale", None)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_down(_shexp)?\.weight"):
        read(case)


def test_wrong_shape_names_the_fields(read: Read) -> None:
    case = mk.dflash()
    case.tensors.add("layers.1.mlp.up_proj.weight", mk.FFN, mk.HIDDEN + 1)
    with pytest.raises(CheckpointError, match=r"intermediate_size x hidden_size"):
        read(case)


def test_two_tensors_for_one_name(read: Read) -> None:
    case = mk.dflash()
    case.tensors.add("encoder.fc.weight", mk.HIDDEN, 3 * mk.HIDDEN)
    with pytest.raises(CheckpointError, match=r"both become fc\.weight"):
        read(case)


def test_interleaved_heads_become_neox(read: Read) -> None:
    case = mk.dspark_lfm2()
    description = read(case)
    source = case.tensors.float32("layers.0.self_attn.k_proj.weight").reshape(mk.KV_HEADS, mk.HEAD_DIM, mk.HIDDEN)
    wanted = np.concatenate([source[:, 0::2], source[:, 1::2]], axis=1).reshape(-1, mk.HIDDEN)
    assert np.array_equal(values_of(plan_of(description, "blk.0.attn_k.weight")), wanted)
    norm = case.tensors.float32("layers.1.self_attn.q_norm.weight")
    wanted = np.concatenate([norm[0::2], norm[1::2]])
    assert np.array_equal(values_of(plan_of(description, "blk.1.attn_q_norm.weight")).reshape(-1), wanted)


def test_eagle3_heads_become_interleaved(read: Read) -> None:
    case = mk.eagle3()
    source = case.tensors.float32("midlayer.self_attn.q_proj.weight").reshape(mk.HEADS, mk.HEAD_DIM, 2 * mk.HIDDEN)
    wanted = np.empty_like(source)
    wanted[:, 0::2], wanted[:, 1::2] = source[:, : mk.HEAD_DIM // 2], source[:, mk.HEAD_DIM // 2 :]
    plan = plan_of(read(case), "blk.0.attn_q.weight")
    assert np.array_equal(values_of(plan), wanted.reshape(-1, 2 * mk.HIDDEN))


def test_d2t_becomes_absolute(read: Read) -> None:
    plan = plan_of(read("dspark_speculators"), "d2t")
    assert np.array_equal(values_of(plan).reshape(-1), np.arange(mk.DRAFT_VOCAB) * 2)


def test_a_narrow_confidence_head_is_padded_with_zeros(read: Read) -> None:
    case = mk.Case(mk.contract(architectures=["DSparkDraftModel"]), mk.markov(mk.backbone(), confidence=False))
    case.tensors.add("confidence_head.proj.weight", 1, mk.HIDDEN)
    got = values_of(plan_of(read(case), "conf_proj.weight"))
    assert np.array_equal(got[:, : mk.HIDDEN], case.tensors.float32("confidence_head.proj.weight"))
    assert np.array_equal(got[:, mk.HIDDEN :], np.zeros((1, mk.RANK), dtype=np.float32))


def test_a_zero_markov_head_is_zero_in_the_file(case_dir: Make, tmp_path: Path) -> None:
    where = case_dir(mk.dspark_deepspec_plain())
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    conversion = convert.prepare(*source, convert.Options(outtypes=("q4_0",)))
    path = convert.write(conversion, [tmp_path / "out.gguf"], threads=2)[0].path
    file = open_gguf(path)
    for name in ("markov_w1.weight", "markov_w2.weight"):
        assert file.tensors[name].shape == (mk.VOCAB, 32)
        import quant

        assert not quant.dequantize(file.data(name), file.tensors[name].type.name).any()


# --- quantized checkpoints -------------------------------------------------------------------------------------

UP = "layers.0.mlp.up_proj.weight"
SIZE = (mk.FFN, mk.HIDDEN)


def e4m3(code: int) -> float:
    """One FP8 E4M3 number, from the format's definition."""
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, (code >> 3) & 15, code & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
EIGHT = np.array([e4m3(code) for code in range(256)], dtype=np.float32)
FOUR = np.array(E2M1 + [-v for v in E2M1], dtype=np.float32)


def codes(*shape: int, top: int = 256) -> Array:
    raw = np.random.PCG64(7).random_raw(int(np.prod(shape))).astype(np.uint64) >> np.uint64(20)
    result = (raw % np.uint64(top)).astype(np.uint8).reshape(shape)
    return np.where(result & 127 == 127, 0, result).astype(np.uint8) if top == 256 else result


def scales(*shape: int) -> Array:
    return np.abs(mk.values("scales", shape, 0.1)) + np.float32(2.0**-7)


def block_fp8(t: mk.Tensors) -> Array:
    c, s = codes(*SIZE), scales(-(-mk.FFN // 80), -(-mk.HIDDEN // 48))
    t[UP] = ("F8_E4M3", c)
    t[UP + "_scale_inv"] = ("F32", s)
    spread: Array = np.repeat(np.repeat(s, 80, axis=0), 48, axis=1)[: mk.FFN, : mk.HIDDEN]
    return EIGHT[c] * spread


def channel_fp8(t: mk.Tensors) -> Array:
    c, s = codes(*SIZE), scales(mk.FFN, 1)
    t[UP] = ("F8_E4M3", c)
    t[UP + "_scale"] = ("BF16", (s.view(np.uint32) >> 16).astype(np.uint16))
    return EIGHT[c] * (s.view(np.uint32) & 0xFFFF0000).view(np.float32)


def tensor_fp8(t: mk.Tensors) -> Array:
    c = codes(*SIZE)
    t[UP] = ("F8_E4M3", c)
    t[UP + "_scale"] = ("F32", np.array(0.125, dtype=np.float32))
    t[UP.replace("weight", "input_scale")] = ("F32", np.array(3.0, dtype=np.float32))
    return EIGHT[c] * np.float32(0.125)


def mx_fp8(t: mk.Tensors) -> Array:
    c, s = codes(*SIZE), np.full((mk.FFN, mk.HIDDEN // 32), 120, dtype=np.uint8)
    s[3, 1] = 124
    t[UP] = ("F8_E4M3", c)
    t[UP + "_scale"] = ("U8", s)
    return EIGHT[c] * np.repeat(2.0 ** (s.astype(np.float32) - 127), 32, axis=1)


def nibbles(packed: Array) -> Array:
    return np.stack([FOUR[packed & 15], FOUR[packed >> 4]], axis=-1).reshape(packed.shape[0], -1)


def nvfp4(t: mk.Tensors) -> Array:
    packed, s = codes(mk.FFN, mk.HIDDEN // 2, top=255), codes(mk.FFN, mk.HIDDEN // 16, top=112)
    t[UP] = ("U8", packed)
    t[UP + "_scale"] = ("F8_E4M3", s)
    t[UP + "_scale_2"] = ("F32", np.array(0.25, dtype=np.float32))
    return nibbles(packed) * np.repeat(EIGHT[s], 16, axis=1) * np.float32(0.25)


def nvfp4_packed(t: mk.Tensors) -> Array:
    packed, s = codes(mk.FFN, mk.HIDDEN // 2, top=255), codes(mk.FFN, mk.HIDDEN // 16, top=112)
    del t[UP]
    t[UP + "_packed"] = ("U8", packed)
    t[UP + "_scale"] = ("F8_E4M3", s)
    t[UP + "_global_scale"] = ("F32", np.array([8.0], dtype=np.float32))
    return nibbles(packed) * np.repeat(EIGHT[s], 16, axis=1) / np.float32(8)


def mxfp4_packed(t: mk.Tensors) -> Array:
    packed = codes(mk.FFN, mk.HIDDEN // 2, top=255)
    s = codes(mk.FFN, mk.HIDDEN // 32, top=9) + np.uint8(119)
    del t[UP]
    t[UP + "_packed"] = ("U8", packed)
    t[UP + "_scale"] = ("U8", s)
    return nibbles(packed) * np.repeat(2.0 ** (s.astype(np.float32) - 127), 32, axis=1)


def mxfp4_blocks(t: mk.Tensors) -> Array:
    packed = codes(mk.FFN, mk.HIDDEN // 32, 16, top=255)
    s = codes(mk.FFN, mk.HIDDEN // 32, top=9) + np.uint8(119)
    del t[UP]
    t[UP.removesuffix(".weight") + "_blocks"] = ("U8", packed)
    t[UP.removesuffix(".weight") + "_scales"] = ("U8", s)
    flat = packed.reshape(mk.FFN, -1)
    return nibbles(flat) * np.repeat(2.0 ** (s.astype(np.float32) - 127), 32, axis=1)


SCHEMES: dict[str, tuple[Callable[[mk.Tensors], Array], dict[str, Any]]] = {
    "fp8 blocks": (block_fp8, {"quant_method": "fp8", "weight_block_size": [80, 48]}),
    "fp8 channels": (channel_fp8, {"quant_method": "compressed-tensors", "config_groups": {}}),
    "fp8 tensor": (tensor_fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "mxfp8": (mx_fp8, {"quant_method": "mxfp8"}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4 packed": (nvfp4_packed, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
    "mxfp4 packed": (mxfp4_packed, {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}),
    "mxfp4 blocks": (mxfp4_blocks, {"quant_method": "mxfp4"}),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_weights_are_dequantized(scheme: str, read: Read) -> None:
    make, config = SCHEMES[scheme]
    case = mk.Case(mk.contract(quantization_config=config), mk.backbone())
    wanted = make(case.tensors)
    description = read(case)
    plan = plan_of(description, "blk.0.ffn_up.weight")
    assert plan.shape == SIZE
    assert np.array_equal(values_of(plan), wanted)
    assert "dequantized" in "".join(note.text for note in description.notes)
    written = [source.name for p in description.tensors for source in p.sources]
    assert sorted(written + [name for name, _ in description.skipped]) == sorted(case.tensors)


def test_a_quantized_checkpoint_converts_in_workers_too(case_dir: Make, tmp_path: Path) -> None:
    case = mk.Case(
        mk.contract(quantization_config={"quant_method": "fp8", "weight_block_size": [80, 48]}), mk.backbone()
    )
    wanted = block_fp8(case.tensors)
    where = case_dir(case)
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    conversion = convert.prepare(*source, convert.Options(outtypes=("f32",)))
    path = convert.write(conversion, [tmp_path / "out.gguf"], threads=2)[0].path
    assert np.array_equal(open_gguf(path).data("blk.0.ffn_up.weight").view(np.float32).reshape(SIZE), wanted)


def broken(change: Callable[[mk.Tensors], None], config: dict[str, Any] | None = None) -> mk.Case:
    case = mk.Case(mk.contract(quantization_config=config or {"quant_method": "fp8"}), mk.backbone())
    block_fp8(case.tensors)
    change(case.tensors)
    return case


def drop_scale(t: mk.Tensors) -> None:
    del t[UP + "_scale_inv"]


def lonely_scale(t: mk.Tensors) -> None:
    t[UP.replace("up", "gate") + "_scale_inv"] = ("F32", scales(3, 3))


@pytest.mark.parametrize(
    ("change", "config", "text"),
    [
        (drop_scale, None, "its scale .* is missing"),
        (lonely_scale, {"quant_method": "fp8", "weight_block_size": [80, 48]}, "scale without its weight"),
        (lambda t: None, None, "names no weight_block_size"),
        (lambda t: None, {"quant_method": "fp8", "weight_block_size": [128, 128]}, r"needs \[2, 1\] scales"),
    ],
)
def test_quantized_checkpoints_that_do_not_add_up(
    change: Callable[[mk.Tensors], None], config: dict[str, Any] | None, text: str, read: Read
) -> None:
    with pytest.raises((CheckpointError, FamilyError), match=text):
        read(broken(change, config))


def test_a_nan_code_is_found(case_dir: Make, tmp_path: Path) -> None:
    case = mk.dflash()
    c = codes(*SIZE)
    c[5, 9] = 0x7F
    case.tensors[UP] = ("F8_E4M3", c)
    case.tensors[UP + "_scale"] = ("F32", np.array([1.0], dtype=np.float32))
    where = case_dir(case)
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    conversion = convert.prepare(*source, convert.Options(outtypes=("q8_0",)))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight', row 5 holds NaN"):
        convert.write(conversion, [tmp_path / "out.gguf"], threads=1)
    assert not (tmp_path / "out.gguf").exists()


def test_the_checkpoint_reader_accepts_every_generated_case(tmp_path: Path) -> None:
    for name, make in mk.CASES.items():
        drafter, _ = mk.write_case(make(), tmp_path / name)
        assert set(open_checkpoint(drafter).tensors) == set(make().tensors)

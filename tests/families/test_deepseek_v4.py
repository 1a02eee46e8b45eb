"""DeepSeek-V4 DSpark: whole files equal llama.cpp's, stacked experts, what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Key, Make, Read

from dflash_convert import conversion as convert
from dflash_convert.checkpoint import Reader
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Taps
from dflash_convert.encode.pieces import Piece, piece_from_json, piece_to_json
from dflash_convert.encode.transforms import RowSource
from dflash_convert.errors import CheckpointError, ConfigError, DflashError, FamilyError, UsageError
from dflash_convert.memory.models import model_from_keys
from dflash_convert.pairing import check, open_pair
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import plan_quantize
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify

NAMES = ("deepseek_v4_dspark", "deepseek_v4_dspark_fp8")
EXPERT = "mtp.1.ffn.experts.2.w2."


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """What convert_hf_to_gguf.py of llama.cpp b11434 writes for the cases."""
    path = Path(mk.__file__).parent / "golden" / "deepseek_v4_dspark.json"
    cases: dict[str, Any] = json.loads(path.read_text())["cases"]
    return cases


def prepare(where: Path, *outtypes: str, **options: Any) -> convert.Conversion:
    given = convert.Options(outtypes=outtypes, plain=True, model_name="tiny", pre="qwen2", **options)
    return convert.prepare(convert.Source(where / "drafter"), Target.read(where / "target"), given)


def keys_of(path: Path) -> dict[str, Any]:
    """Keys as the golden file lists them: long lists as length, hash and first items."""
    result = {}
    for kv in open_gguf(path).keys.values():
        value: Any = kv.value if kv.item is None else list(kv.value)
        if isinstance(value, list) and len(value) > 64:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            value = {"length": len(value), "sha256": hashlib.sha256(text.encode()).hexdigest(), "head": value[:4]}
        result[kv.name] = {"type": kv.type.name + (f"/{kv.item.name}" if kv.item is not None else ""), "value": value}
    return result


def tensors_of(path: Path) -> list[dict[str, Any]]:
    file = open_gguf(path)
    return [
        {
            "name": t.name,
            "shape": list(t.shape[::-1]),
            "type": t.type.name,
            "sha256": hashlib.sha256(file.data(t.name).tobytes()).hexdigest(),
        }
        for t in file.tensors.values()
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_files_are_the_references_byte_for_byte(
    name: str, threads: int, case_dir: Make, golden: dict[str, Any], tmp_path: Path
) -> None:
    conversion = prepare(case_dir(mk.CASES[name]()), "bf16", "f16", "q8_0")
    wanted = golden[name]
    for one in convert.write(conversion, convert.output_paths(conversion, tmp_path), threads=threads):
        assert list(keys_of(one.path)) == list(wanted["metadata"])
        assert keys_of(one.path) == wanted["metadata"]
        assert tensors_of(one.path) == wanted["tensors"]
        assert hashlib.sha256(one.path.read_bytes()).hexdigest() == wanted["file_sha256"]


def test_stacked_experts_stream_across_their_borders(read: Read) -> None:
    """Pieces of 7 rows, of matrices with 128, through the form in which jobs travel to workers."""
    case = mk.deepseek_v4_dspark()
    plan = next(p for p in read(case).tensors if p.name == "blk.1.ffn_down_exps.weight")
    assert plan.shape == (mk.EXPERTS, mk.HIDDEN, mk.EXPERT_FFN)
    rows = mk.EXPERTS * mk.HIDDEN
    sent = plan
    plan = piece_from_json(json.loads(json.dumps(piece_to_json(Piece(plan, 0, rows, ())))), {}).plan
    assert (plan, plan.type) == (sent, "MXFP4"), "a worker has the whole plan"
    with Reader() as reader:
        source = RowSource(reader)
        got = np.concatenate([source.rows(plan, at, min(at + 7, rows)) for at in range(0, rows, 7)])
    blocks = got.reshape(mk.EXPERTS, mk.HIDDEN, mk.EXPERT_FFN // 32, 17)
    codes, exponents = case.tensors[EXPERT + "weight"][1], case.tensors[EXPERT + "scale"][1]
    assert np.array_equal(blocks[2, :, :, 0], exponents)
    for value in (0, 1, 15, 16, 31):  # of the second block of row 5
        byte = int(codes[5, (32 + value) // 2])
        found = int(blocks[2, 5, 1, 1 + value % 16])
        assert (found >> 4 if value >= 16 else found & 15) == (byte >> 4 if value % 2 else byte & 15)


@pytest.mark.parametrize("name", NAMES)
def test_verify_and_check_accept_the_file(name: str, case_dir: Make, tmp_path: Path) -> None:
    where = case_dir(mk.CASES[name]())
    path = tmp_path / "dspark-tiny-BF16.gguf"
    convert.write(prepare(where, "bf16"), [path], threads=1)
    result = verify(path, where / "drafter", Target.read(where / "target"))
    assert result.passed
    experts = [t for t in result.tensors if t.name.endswith("_exps.weight")]
    assert len(experts) == 3 * mk.SPARK_STAGES
    assert {t.status for t in experts} == {"equal"}
    assert not [f for f in check(*open_pair(path, where / "target")) if f.severity == "error"]
    bytes_ = bytearray(path.read_bytes())
    bytes_[open_gguf(path).tensors["blk.0.ffn_up_exps.weight"].offset + 5] ^= 1
    path.write_bytes(bytes_)
    assert (
        "blk.0.ffn_up_exps.weight differs"
        in verify(path, where / "drafter", Target.read(where / "target")).differences[0]
    )


@pytest.mark.parametrize(
    ("outtype", "options"), [("q4_k_m", TypeOptions()), ("q8_0", TypeOptions(pure=True)), ("mxfp4_moe", TypeOptions())]
)
def test_recipes_do_not_apply(outtype: str, options: TypeOptions, case_dir: Make) -> None:
    with pytest.raises(UsageError, match=r"keeps the types of its checkpoint|unknown output type"):
        prepare(case_dir(mk.deepseek_v4_dspark()), outtype, types=options)


def test_quantize_refuses_a_file_with_experts(case_dir: Make, tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    convert.write(prepare(case_dir(mk.deepseek_v4_dspark()), "bf16"), [path], threads=1)
    with pytest.raises(FamilyError, match="a drafter with experts keeps the types"):
        plan_quantize(open_gguf(path), "q4_0", TypeOptions())


def test_memory_counts_every_stage_as_windowed(case_dir: Make, tmp_path: Path) -> None:
    """As llama.cpp reports it: no cells without a window, keys and values of head_dim in three layers."""
    path = tmp_path / "out.gguf"
    convert.write(prepare(case_dir(mk.deepseek_v4_dspark()), "bf16"), [path], threads=1)
    model = model_from_keys({kv.name: kv.value for kv in open_gguf(path).keys.values()})
    assert model.window == 64
    assert [(layer.k, layer.v, layer.windowed) for layer in model.layers] == [(64, 64, True)] * 3
    assert not model.notes


def test_of_a_target_in_the_same_file_a_few_tensors_are_named(case_dir: Make) -> None:
    case = mk.deepseek_v4_dspark_fp8()
    for i in range(20):
        case.tensors.add(f"layers.{i}.attn.wq_a.weight", 3, 5)
    conversion = prepare(case_dir(case), "bf16")
    assert len(conversion.description.skipped) == 22
    assert [
        n.text.count("layers.") for n in conversion.notes if n.text.endswith("14 more: a tensor of the target")
    ] == [7]


def test_a_float16_checkpoint_follows_the_output_type(case_dir: Make, tmp_path: Path) -> None:
    case = mk.deepseek_v4_dspark()
    for name in ("mtp.0.attn.wkv.weight", "mtp.0.ffn.gate.weight"):
        case.tensors[name] = ("F16", case.tensors.float32(name).astype(np.float16))
    conversion = prepare(case_dir(case), "bf16", "q8_0")
    for plan, wanted in zip(conversion.files, ("BF16", "Q8_0"), strict=True):
        kinds = {tensor.name: kind.name for tensor, kind in plan.tensors}
        assert kinds["blk.0.attn_kv.weight"] == wanted
        assert kinds["blk.0.ffn_gate_inp.weight"] == "F32"
        assert kinds["blk.1.attn_kv.weight"] == "BF16"


def drop(name: str) -> Callable[[mk.Case], None]:
    def change(case: mk.Case) -> None:
        del case.tensors[name]

    return change


def put(name: str, dtype: str, array: mk.Array) -> Callable[[mk.Case], None]:
    def change(case: mk.Case) -> None:
        case.tensors[name] = (dtype, array)

    return change


def field(**over: Any) -> Callable[[mk.Case], None]:
    return lambda case: case.config.update(over)


WIDE = np.zeros((mk.HIDDEN, mk.EXPERT_FFN), dtype=np.uint16)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (drop(EXPERT + "weight"), FamilyError, r"experts\.2\.w2\.scale' is a scale without its weight"),
        (drop(EXPERT + "scale"), FamilyError, r"experts\.2\.w2\.weight' \(I8\) is not a matrix in MXFP4"),
        (put(EXPERT + "weight", "BF16", WIDE), FamilyError, r"\(BF16\) is not a matrix in MXFP4"),
        (put(EXPERT + "scale", "F8_E8M0", WIDE[:, :3].astype(np.uint8)), CheckpointError, r"needs \[128, 2\] scales"),
        (field(n_routed_experts=5), CheckpointError, r"no tensor 'mtp\.0\.ffn\.experts\.4\.w1\.weight'"),
        (field(n_routed_experts=3), CheckpointError, r"experts\.3\..* is not one of the 3 experts"),
        (field(n_routed_experts=4_000_000_000), CheckpointError, r"no tensor 'mtp\.0\.ffn\.experts\.4\.w1"),
        (field(moe_intermediate_size=32), CheckpointError, r"holds \[64, 128\] values, not \[32, 128\]"),
        (field(scoring_func="sigmoid"), FamilyError, "scoring_func is 'sigmoid'"),
        (field(dspark_block_size=None), ConfigError, "dspark_block_size is missing"),
        (field(dspark_target_layer_ids=None), ConfigError, "dspark_target_layer_ids is missing"),
        (field(dspark_target_layer_ids=[1, 2]), ConfigError, "2 taps, but fc.weight is made for 3"),
        (field(hc_mult=None), ConfigError, "hc_mult is missing"),
        (field(o_groups=3), ConfigError, "o_groups is 3, expected a divisor of 256"),
        (field(qk_rope_head_dim=66), ConfigError, "qk_rope_head_dim is 66"),
        (drop("mtp.2.hc_head_fn"), CheckpointError, r"output_hc_fn\.weight"),
        (put("mtp.0.attn.wkv.scale", "F8_E8M0", WIDE[:1, :1].astype(np.uint8)), FamilyError, "BF16 and has a scale"),
        (put("mtp.1.attn.compressor.ape", "BF16", WIDE), FamilyError, "uncompressed attention only"),
        (put("mtp.0.e_proj.weight", "BF16", WIDE), FamilyError, "plain multi-token predictor"),
        (put("mtp.99999.hc_ffn_base", "BF16", WIDE), CheckpointError, "512 layers"),
    ],
)
def test_what_does_not_add_up_is_refused(
    change: Callable[[mk.Case], None], kind: type[DflashError], text: str, read: Read
) -> None:
    case = mk.deepseek_v4_dspark()
    change(case)
    with pytest.raises(kind, match=text):
        read(case)


def test_a_target_alone_has_no_stages(read: Read) -> None:
    case = mk.deepseek_v4_dspark_fp8()
    case.tensors = mk.Tensors({n: t for n, t in case.tensors.items() if not n.startswith("mtp.")})
    with pytest.raises(CheckpointError, match=r"no stage mtp\.0"):
        read(case)


def test_routing_of_images_and_by_hash_is_skipped_with_a_reason(read: Read) -> None:
    case = mk.deepseek_v4_dspark()
    case.tensors.float("mtp.0.ffn.gate.bias_vl", mk.EXPERTS)
    case.tensors["mtp.0.ffn.gate.tid2eid"] = ("I64", np.zeros((mk.VOCAB, 2), dtype=np.int64))
    assert dict(read(case).skipped).keys() == {"mtp.0.ffn.gate.bias_vl", "mtp.0.ffn.gate.tid2eid"}


def test_the_command_line_overrules_the_contract(read: Read, key: Key) -> None:
    case = mk.deepseek_v4_dspark()
    for name in ("dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids"):
        del case.config[name]
    found = read(case, block_size=7, mask_token_id=9, taps=Taps.from_outputs((2, 3, 4)))
    assert (found.block_size, found.mask_token_id, found.taps.inputs) == (7, 9, (3, 4, 5))
    assert key(found, "block_size") == 7

"""Forks' drafter files are named and rewritten: keys, names and taps change, bytes do not, nothing shifts twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from click.testing import CliRunner
from make_target import write_target

from dflash_convert.cli.migrate import command
from dflash_convert.container.reader import Gguf, open_gguf
from dflash_convert.container.types import KV, TensorType, ValueType, array, boolean, f32, string, u32
from dflash_convert.container.writer import Entry, GgufOutput, layout
from dflash_convert.drafter import Overrides, Taps
from dflash_convert.engine import embedded, session
from dflash_convert.engine.trace import Launch, Request
from dflash_convert.errors import ContainerError, DflashError, FamilyError, UsageError
from dflash_convert.forks.dialects import dialect_of
from dflash_convert.forks.migrate import migrate_file, plan_migration
from dflash_convert.plan import TypeOptions
from dflash_convert.quantization import plan_quantize

NAMES = {
    "fc.weight": "dflash_fc.weight",
    "hidden_norm.weight": "dflash_hidden_norm.weight",
    "norm.weight": "output_norm.weight",
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def fork_name(name: str) -> str:
    if not name.startswith("layers."):
        return NAMES.get(name, name)
    _, number, rest = name.split(".", 2)
    return f"blk.{number}.{LAYER[rest.removesuffix('.weight')]}.weight"


def backbone_keys(arch: str) -> list[KV]:
    return [
        string("general.architecture", arch),
        string("general.name", "old"),
        u32(f"{arch}.block_count", mk.LAYERS),
        u32(f"{arch}.context_length", 4096),
        u32(f"{arch}.embedding_length", mk.HIDDEN),
        u32(f"{arch}.feed_forward_length", mk.FFN),
        u32(f"{arch}.attention.head_count", mk.HEADS),
        u32(f"{arch}.attention.head_count_kv", mk.KV_HEADS),
        u32(f"{arch}.attention.key_length", mk.HEAD_DIM),
        f32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6),
        f32(f"{arch}.rope.freq_base", 1000000.0),
    ]


def nested_keys(arch: str = "dflash-draft") -> list[KV]:
    return [
        *backbone_keys(arch),
        u32(f"{arch}.dflash.block_size", mk.BLOCK),
        u32(f"{arch}.dflash.mask_token_id", mk.MASK),
        array(f"{arch}.dflash.target_layer_ids", ValueType.INT32, mk.TAPS),
        u32(f"{arch}.dflash.n_target_features", len(mk.TAPS) * mk.HIDDEN),
    ]


def write_fork(path: Path, keys: list[KV], tensors: mk.Tensors, vocabulary: list[KV] | None = None) -> Path:
    arrays = {fork_name(name): tensors.float32(name) for name in tensors}
    entries = [Entry(name, a.shape, TensorType.F32) for name, a in arrays.items()]
    keys = [*keys, *(vocabulary or [])]
    with GgufOutput(path, entries, layout(keys, entries), force=True) as out:
        for name, numbers in arrays.items():
            out.write_at(out.offset(name), np.ascontiguousarray(numbers).view(np.uint8).reshape(-1).data)
        out.commit()
    return path


@pytest.fixture(scope="module")
def target(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(fixtures / "tiny-js" / "target", tmp_path_factory.mktemp("target") / "target.gguf")


@pytest.fixture(scope="module")
def vocabulary(target: Path) -> list[KV]:
    return [kv for name, kv in open_gguf(target).keys.items() if name.startswith("tokenizer.")]


@pytest.fixture
def old(tmp_path: Path, vocabulary: list[KV]) -> Path:
    return write_fork(tmp_path / "old.gguf", nested_keys(), mk.backbone(), vocabulary)


def values(gguf: Gguf) -> dict[str, Any]:
    return {name: kv.value if kv.item is None else list(kv.value) for name, kv in gguf.keys.items()}


def test_dflash_draft_is_named_and_rewritten(old: Path, tmp_path: Path) -> None:
    found = dialect_of(open_gguf(old))
    assert found is not None
    assert (found.name, found.runtimes) == ("dflash-draft", "buun-llama-cpp and beellama.cpp")
    migrate_file(old, tmp_path / "new.gguf", Overrides())
    before, after = open_gguf(old), open_gguf(tmp_path / "new.gguf")
    keys = values(after)
    assert keys["general.architecture"] == "dflash"
    assert keys["dflash.target_layers"] == [2, 3, 4]
    assert keys["dflash.block_size"] == mk.BLOCK
    assert keys["dflash.rope.freq_base"] == 1000000.0
    assert keys["tokenizer.ggml.mask_token_id"] == mk.MASK
    assert keys["dflash.attention.value_length"] == mk.HEAD_DIM
    assert keys["dflash_convert.migrated_from"] == "dflash-draft"
    assert keys["dflash_convert.source_taps"] == mk.TAPS
    assert not [name for name in keys if name.startswith("dflash-draft")]
    assert len(after.tensors) == len(before.tensors)
    assert np.array_equal(after.data("fc.weight"), before.data("dflash_fc.weight"))
    assert np.array_equal(after.data("enc.output_norm.weight"), before.data("dflash_hidden_norm.weight"))
    assert np.array_equal(after.data("blk.1.ffn_up.weight"), before.data("blk.1.ffn_up.weight"))


def test_nothing_is_shifted_twice(old: Path, tmp_path: Path, vocabulary: list[KV]) -> None:
    migrate_file(old, tmp_path / "new.gguf", Overrides())
    assert dialect_of(open_gguf(tmp_path / "new.gguf")) is None
    with pytest.raises(UsageError, match="nothing to rewrite"):
        migrate_file(tmp_path / "new.gguf", tmp_path / "again.gguf", Overrides())
    assert not (tmp_path / "again.gguf").exists()
    arch = "dflash-draft"
    own = array(f"{arch}.target_layers", ValueType.INT32, [2, 3, 4])  # newer builds write layer inputs un-nested
    keys = [kv for kv in nested_keys() if not kv.name.endswith("target_layer_ids")]
    unnested = open_gguf(write_fork(tmp_path / "u.gguf", [*keys, own], mk.backbone(), vocabulary))
    assert plan_migration(unnested, None, Overrides()).keys != ()
    taps = next(
        kv.value for kv in plan_migration(unnested, None, Overrides()).keys if kv.name == "dflash.target_layers"
    )
    assert taps == [2, 3, 4]
    both = array(f"{arch}.target_layers", ValueType.INT32, [1, 2, 3])
    bad = open_gguf(write_fork(tmp_path / "b.gguf", [*nested_keys(), both], mk.backbone(), vocabulary))
    with pytest.raises(ContainerError, match="are not the nested taps"):
        plan_migration(bad, None, Overrides())


def test_gemma4_draft_gets_what_its_loader_had_built_in(tmp_path: Path, vocabulary: list[KV]) -> None:
    arch = "gemma4-dflash-draft"
    own = [u32(f"{arch}.dflash.sliding_window", 64), f32(f"{arch}.dflash.logit_softcap", 30.0)]
    path = write_fork(tmp_path / "old.gguf", [*nested_keys(arch), *own], mk.backbone(), vocabulary)
    migrate_file(path, tmp_path / "new.gguf", Overrides())
    keys = values(open_gguf(tmp_path / "new.gguf"))
    assert keys["dflash.attention.sliding_window"] == 64
    assert keys["dflash.attention.sliding_window_pattern"] == [True, False]
    assert keys["dflash.final_logit_softcapping"] == 30.0
    assert keys["dflash.embedding_scale"] == pytest.approx(mk.HIDDEN**0.5)


def legacy(path: Path, **over: Any) -> Path:
    """PrismML's first DSpark form: doubled prefix, no vocabulary, heads under their own names."""
    renamed = {
        "fc.weight": "dspark.fc.weight",
        "hidden_norm.weight": "dspark.hidden_norm.weight",
        "markov_head.markov_w1.weight": "dspark.markov_head_a.weight",
        "markov_head.markov_w2.weight": "dspark.markov_head_b.weight",
        "confidence_head.proj.weight": "dspark.confidence_head.weight",
        "confidence_head.proj.bias": "dspark.confidence_head.bias",
    }
    tensors = mk.own_vocabulary(mk.markov(mk.backbone())).rename(lambda name: renamed.get(name, name))
    keys = [
        *backbone_keys("dspark"),
        u32("dspark.dspark.block_size", 7),
        u32("dspark.dspark.mask_token_id", mk.MASK),
        array("dspark.dspark.target_layers", ValueType.INT32, mk.TAPS),
        u32("dspark.dspark.markov_rank", mk.RANK),
        boolean("dspark.dspark.confidence_head", True),
        boolean("dspark.dspark.log_snr_conditioning", bool(over.get("noise", False))),
        string("tokenizer.ggml.model", "none"),
    ]
    return write_fork(path, keys, tensors)


def test_legacy_dspark_needs_a_vocabulary_and_gets_the_targets(tmp_path: Path, fixtures: Path) -> None:
    path = legacy(tmp_path / "old.gguf")
    with pytest.raises(ContainerError, match="has no vocabulary") as caught:
        migrate_file(path, tmp_path / "new.gguf", Overrides())
    assert "--target-model-dir" in str(caught.value.tip)
    assert not (tmp_path / "new.gguf").exists()
    target_dir = str(fixtures / "tiny-js" / "target")
    arguments = [str(path), str(tmp_path / "new.gguf"), "--target-model-dir", target_dir, "--json"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert json.loads(result.stdout)["dialect"] == "legacy dspark"
    new = open_gguf(tmp_path / "new.gguf")
    keys = values(new)
    assert keys["dflash.target_layers"] == [2, 3, 4]
    assert (keys["dflash.sample_from_anchor"], keys["dflash.has_confidence_head"]) == (True, True)
    assert len(keys["tokenizer.ggml.tokens"]) == mk.VOCAB
    assert keys["tokenizer.ggml.mask_token_id"] == mk.MASK
    assert new.tensors["conf_proj.weight"].shape == (1, mk.HIDDEN + mk.RANK)
    assert np.array_equal(new.data("markov_w2.weight"), open_gguf(path).data("dspark.markov_head_b.weight"))


def test_a_drafter_with_a_noise_level_embedding_is_refused(tmp_path: Path, vocabulary: list[KV]) -> None:
    path = legacy(tmp_path / "old.gguf", noise=True)
    with pytest.raises(FamilyError, match="noise-level"):
        plan_migration(open_gguf(path), vocabulary, Overrides())


@pytest.mark.parametrize(
    ("arch", "extra", "name"),
    [
        ("deepseek4-dspark", [], "deepseek4-dspark"),
        ("deepseek4_mtp_support", [], "deepseek4_mtp_support"),
        ("dflash", [u32("dflash.expert_count", 8)], "dflash with expert keys"),
    ],
)
def test_dialects_that_cannot_be_rewritten_are_named(arch: str, extra: list[KV], name: str, tmp_path: Path) -> None:
    path = write_fork(tmp_path / "old.gguf", [*backbone_keys(arch), *extra], mk.backbone())
    found = dialect_of(open_gguf(path))
    assert found is not None
    assert found.name == name
    with pytest.raises(FamilyError, match=name):
        plan_migration(open_gguf(path), None, Overrides())
    with pytest.raises(FamilyError, match=name) as caught:
        plan_quantize(open_gguf(path), "Q4_0", TypeOptions())
    assert caught.value.tip == found.obstacle  # and not a way that leads nowhere


def test_llama_cpps_own_files_are_no_dialect(target: Path, tmp_path: Path) -> None:
    assert dialect_of(open_gguf(target)) is None
    stages = [u32("dflash.expert_count", 8), u32("dflash.hyper_connection.count", 4)]
    path = write_fork(tmp_path / "v4.gguf", [*backbone_keys("dflash"), *stages], mk.backbone())
    assert dialect_of(open_gguf(path)) is None


def without(name: str) -> list[KV]:
    return [kv for kv in nested_keys() if not kv.name.endswith(name)]


def with_tensor(name: str) -> mk.Tensors:
    tensors = mk.backbone()
    tensors.add(name, 4, 4)
    return tensors


def lost(name: str) -> mk.Tensors:
    tensors = mk.backbone()
    del tensors[name]
    return tensors


@pytest.mark.parametrize(
    ("keys", "tensors", "text"),
    [
        (without("target_layer_ids"), mk.backbone(), "has no taps"),
        (without("dflash.block_size"), mk.backbone(), "has no block_size"),
        (without("mask_token_id"), mk.backbone(), "has no mask_token_id"),
        (without("rope.freq_base"), mk.backbone(), "no key for rope.freq_base"),
        (without("n_target_features"), mk.backbone(taps=2), "do not make fc's 256 columns"),
        (
            [*without("n_target_features"), u32("dflash-draft.dflash.n_target_features", 9)],
            mk.backbone(),
            "n_target_features 9",
        ),
        (nested_keys(), with_tensor("foo.weight"), "no tensor for 'foo.weight'"),
        (nested_keys(), with_tensor("d2t"), "ids or offsets"),
        (nested_keys(), lost("layers.1.mlp.up_proj.weight"), "blk.1.ffn_up.weight"),
    ],
)
def test_incomplete_files_end_in_one_sentence(
    keys: list[KV], tensors: mk.Tensors, text: str, tmp_path: Path, vocabulary: list[KV]
) -> None:
    path = write_fork(tmp_path / "old.gguf", keys, tensors, vocabulary)
    with pytest.raises(DflashError) as caught:
        migrate_file(path, tmp_path / "new.gguf", Overrides())
    assert text in str(caught.value)
    assert not (tmp_path / "new.gguf").exists()


def test_what_the_file_lacks_can_be_said(tmp_path: Path, vocabulary: list[KV]) -> None:
    path = write_fork(tmp_path / "old.gguf", backbone_keys("dflash-draft"), mk.backbone(), vocabulary)
    given = replace(Overrides(), taps=Taps.from_outputs((0, 2, 5)), block_size=4, mask_token_id=9)
    migrate_file(path, tmp_path / "new.gguf", given)
    keys = values(open_gguf(tmp_path / "new.gguf"))
    assert keys["dflash.target_layers"] == [1, 3, 6]
    assert (keys["dflash.block_size"], keys["tokenizer.ggml.mask_token_id"]) == (4, 9)


def test_keys_that_llama_cpp_lacks_are_named(old: Path, tmp_path: Path, vocabulary: list[KV]) -> None:
    extra = [u32("dflash-draft.dflash.ring_slots", 3)]
    path = write_fork(tmp_path / "x.gguf", [*nested_keys(), *extra], mk.backbone(), vocabulary)
    notes = plan_migration(open_gguf(path), None, Overrides()).notes
    assert [n.text for n in notes if n.level == "skipped"] == [
        "dflash-draft.dflash.ring_slots: llama.cpp has no such key"
    ]
    assert [n for n in plan_migration(open_gguf(old), None, Overrides()).notes if n.level == "skipped"] == []


def test_dry_run_writes_nothing(old: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(old), str(tmp_path / "new.gguf"), "--dry-run"], catch_exceptions=False)
    assert "fc.weight" in result.stdout
    assert "<- dflash_fc.weight" in result.stdout
    assert not (tmp_path / "new.gguf").exists()


Build = Callable[[Path, list[KV]], Path]


def build_plain(path: Path, vocabulary: list[KV]) -> Path:
    return write_fork(path, nested_keys(), mk.backbone(), vocabulary)


def build_legacy(path: Path, vocabulary: list[KV]) -> Path:
    return legacy(path)


@pytest.mark.engine
@pytest.mark.skipif(embedded.installed() is None, reason="needs xllamacpp")
@pytest.mark.parametrize(("build", "spec"), [(build_plain, "draft-dflash"), (build_legacy, "draft-dspark")])
def test_llama_cpp_runs_the_rewritten_file(
    build: Build, spec: str, target: Path, vocabulary: list[KV], tmp_path: Path
) -> None:
    old = build(tmp_path / "old.gguf", vocabulary)
    migrate_file(old, tmp_path / "new.gguf", Overrides(), vocabulary=lambda _: vocabulary)
    info = embedded.info()
    assert info is not None
    launch = Launch(target, tmp_path / "new.gguf", spec_type=spec, n_max=4, ctx_size=256, threads=1, verbosity=4)
    with session.start(info, launch) as engine:
        trace = engine.complete(Request(tuple(range(40, 60)), 12, ignore_eos=True))
    assert len(trace.tokens) == 12
    assert trace.drafted > 0


def test_quantize_points_a_forks_file_here(old: Path) -> None:
    with pytest.raises(FamilyError, match="fork's dialect") as caught:
        plan_quantize(open_gguf(old), "Q4_0", TypeOptions())
    assert caught.value.tip is not None
    assert "dflash-convert migrate" in caught.value.tip

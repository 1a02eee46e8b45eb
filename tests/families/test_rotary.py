"""Rope: every spelling is read, what the runtime reads is written, what it cannot run is refused or said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import make_checkpoints as mk
import numpy as np
import pytest
from family_cases import Key, Make, Read

from dflash_convert import conversion as convert
from dflash_convert.container.reader import open_gguf
from dflash_convert.drafter import Description
from dflash_convert.errors import ConfigError, FamilyError
from dflash_convert.forward.ops import Rope as Turning
from dflash_convert.forward.ops import rope_table
from dflash_convert.hparams import Config
from dflash_convert.rope import frequency_factors, magnitude, read_rope
from dflash_convert.target import Target
from dflash_convert.verification.tensors import verify

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
OWN = YARN | {"beta_fast": 4.0, "beta_slow": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}


def text(description: Description, level: str) -> str:
    return "\n".join(note.text for note in description.notes if note.level == level)


def factors(description: Description) -> np.ndarray | None:
    found = [plan.constant for plan in description.tensors if plan.name == "rope_freqs.weight"]
    return found[0] if found else None


def scaled(table: Mapping[str, Any], **over: Any) -> mk.Case:
    return mk.Case(mk.contract(rope_scaling=dict(table), **over), mk.backbone())


# the factor on the rotated values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.3}, 1.5),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, magnitude(8) / magnitude(8, 0.5)),
        ({"mscale": 0.707}, magnitude(8)),  # transformers needs both
        ({"mscale": 1.0, "mscale_all_dim": 0.0}, magnitude(8)),
        ({"attn_factor": 1.25}, 1.25 * magnitude(8)),  # vLLM's name multiplies
        ({"apply_yarn_scaling": False}, 1.0),
        ({"apply_yarn_scaling": False, "attn_factor": 0.5}, 0.5),
        ({}, magnitude(8)),
    ],
)
def test_the_attention_factor_stands_under_the_key_that_is_read(
    stated: Mapping[str, Any], wanted: float, read: Read, key: Key
) -> None:
    """The runtime multiplies YaRN's own magnitude by rope.scaling.attn_factor and reads no other key for it."""
    found = read(scaled(YARN | stated))
    assert key(found, "rope.scaling.yarn_attn_factor") is None
    factor = key(found, "rope.scaling.attn_factor")
    assert magnitude(8) * (1.0 if factor is None else factor) == pytest.approx(wanted)
    assert (factor is None) == math.isclose(wanted, magnitude(8))
    assert factors(found) is None
    eagle = mk.eagle3()
    eagle.config["rope_scaling"] = YARN | stated
    assert key(read(eagle), "rope.scaling.attn_factor") == factor


def test_plain_writes_the_reference_s_keys_and_says_what_is_lost(read: Read, key: Key) -> None:
    case = scaled(OWN | {"attention_factor": 1.0, "extrapolation_factor": 1.0})
    found = read(case, plain=True)
    names = [kv.name.removeprefix("dflash.rope.scaling.") for kv in found.keys if ".rope.scaling." in kv.name]
    order = ["type", "factor", "original_context_length"]
    assert names == [*order, *(f"yarn_{n}" for n in ("ext_factor", "attn_factor", "beta_fast", "beta_slow"))]
    assert key(found, "rope.scaling.yarn_attn_factor") == 1.0
    assert factors(found) is None
    assert "leave --plain out" in text(found, "warning")
    assert "leave --plain out" not in text(read(scaled(YARN), plain=True), "warning")


def test_both_files_verify_and_the_plain_one_says_what_it_lacks(case_dir: Make, tmp_path: Path) -> None:
    where = case_dir(scaled(OWN | {"attention_factor": 1.25}))
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    notes = {}
    for plain in (False, True):
        conversion = convert.prepare(*source, convert.Options(outtypes=("bf16",), plain=plain))
        (one,) = convert.write(conversion, [tmp_path / f"{plain}.gguf"], threads=1)
        result = verify(one.path, where / "drafter", Target.read(where / "target"))
        assert result.differences == ()
        notes[plain] = "\n".join(note.text for note in result.notes)
    lost = "loses dflash.rope.scaling.attn_factor, rope_freqs.weight"
    assert lost in notes[True]
    assert "loses" not in notes[False]


# frequencies that have no keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [1e4, 1e6, 1e7])
@pytest.mark.parametrize("factor", [2.0, 16.0, 128.0])
@pytest.mark.parametrize("context", [512, 4096, 32768])
def test_divisors_and_factor_turn_as_the_runtime_s_own_yarn(theta: float, factor: float, context: int) -> None:
    """With the runtime's own betas both ways must give one table; the keys' way is proved against the engine."""
    dim, positions = 64, np.arange(0, 4 * context, 97, dtype=np.int64)
    table = YARN | {"factor": factor, "original_max_position_embeddings": context, "extrapolation_factor": 0.999999999}
    rope, _ = read_rope(Config({"rope_theta": theta, "rope_scaling": table, "max_position_embeddings": context}))
    assert rope.own_yarn
    divisors = np.array(frequency_factors(rope, dim, dim // 2), dtype=np.float32)
    keys = rope_table(Turning(theta, dim, "yarn", factor, context), positions)
    tensor = rope_table(Turning(theta, dim, attn_factor=magnitude(factor)), positions, divisors)
    # angles of up to 1e5 in float32: a few units in the last place are 0.03
    for a, b in zip(keys, tensor, strict=True):
        assert np.max(np.abs(a - b)) < 0.05


@pytest.mark.parametrize(
    "stated",
    [{"beta_fast": 4.0}, {"beta_slow": 2.0}, {"truncate": False}, {"extrapolation_factor": 0.5}],
)
def test_a_yarn_of_its_own_is_a_tensor(stated: Mapping[str, Any], read: Read, key: Key) -> None:
    found = read(scaled(YARN | stated))
    values = factors(found)
    assert values is not None
    assert values.shape == (mk.HEAD_DIM // 2,)
    assert values[-1] == pytest.approx(8.0)
    assert 1.0 <= values[0] <= 8.0
    assert key(found, "rope.scaling.type") is None
    assert key(found, "rope.scaling.attn_factor") == pytest.approx(magnitude(8))
    assert "rope_freqs" in text(found, "derived")
    standard = read(scaled(YARN | {"beta_fast": 32, "beta_slow": 1, "truncate": True}))
    assert factors(standard) is None
    assert key(standard, "rope.scaling.yarn_beta_fast") == 32


def test_yarn_without_rounding_against_the_paper_s_formula(read: Read) -> None:
    values = factors(read(scaled(YARN | {"truncate": False}, rope_theta=1e4)))
    dim = mk.HEAD_DIM

    def index(rotations: float) -> float:
        return dim * math.log(512 / (rotations * 2 * math.pi)) / (2 * math.log(1e4))

    low, high = max(index(32), 0), min(index(1), dim - 1)
    kept = 1 - np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    plain = 1e4 ** (-np.arange(0, dim, 2) / dim)
    wanted = plain / 8 * (1 - kept) + plain * kept
    np.testing.assert_allclose(plain / values, wanted, rtol=1e-6)


@pytest.mark.parametrize("table", [OWN, LLAMA3])
def test_divisors_beside_m_rope_are_refused(table: Mapping[str, Any], read: Read) -> None:
    """The graph takes no divisors then: the tensor would lie in the file unread."""
    case = scaled(table)
    case.target = {"rope_parameters": {"rope_type": "default", "mrope_section": [11, 11, 10]}}
    with pytest.raises(FamilyError, match="does not apply for a target with M-RoPE"):
        read(case)
    read(mk.Case(scaled(YARN).config, mk.backbone(), case.target))


def test_divisors_of_a_partly_rotated_head_fill_the_tensor(read: Read, key: Key) -> None:
    """The loader wants head_dim / 2 of them, however many are rotated."""
    found = read(scaled(LLAMA3, partial_rotary_factor=0.5))
    values = factors(found)
    assert values is not None
    assert values.shape == (mk.HEAD_DIM // 2,)
    assert set(values[mk.HEAD_DIM // 4 :]) == {1.0}
    assert key(found, "rope.dimension_count") == mk.HEAD_DIM // 2


def test_proportional_rope_keeps_its_pairs_in_every_family(read: Read, key: Key) -> None:
    table = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    found = read(mk.Case(mk.contract(rope_parameters=table), mk.backbone()))
    values = factors(found)
    assert values is not None
    assert list(values) == [1.0] * 8 + [np.float32(1e30)] * 24
    assert key(found, "rope.dimension_count") is None


# defaults of the class, and places that disagree ----------------------------------------------------------------------


def test_eagle3_without_a_base_takes_its_class_s(read: Read, key: Key) -> None:
    case = mk.eagle3()
    del case.config["rope_theta"]
    found = read(case)
    assert key(found, "rope.freq_base") == 10000.0
    assert "rope_theta 10000: config.json states none" in text(found, "derived")
    assert key(read(case, rope_theta=5e5), "rope.freq_base") == 5e5
    plain = mk.dflash()
    del plain.config["rope_theta"]
    with pytest.raises(ConfigError, match="rope_theta is missing") as caught:
        read(plain)
    assert "--rope-theta" in str(caught.value.tip)
    assert key(read(plain, rope_theta=1e7), "rope.freq_base") == 1e7


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_mrope_of_a_text_head_is_plain_rope(spelling: str, read: Read, key: Key) -> None:
    case = mk.eagle3()
    case.config["rope_scaling"] = {spelling: "mrope", "mrope_section": [16, 8, 8]}
    found = read(case)
    assert key(found, "rope.freq_base") == 1000000.0
    assert key(found, "rope.dimension_sections") == [16, 8, 8, 0]  # as the reference; the graph has one position
    newer = mk.eagle3()
    newer.config["rope_parameters"] = {"rope_type": "default", "mrope_section": [16, 8, 8], "rope_theta": 1e6}
    assert read(newer).all_keys == found.all_keys


def test_sections_of_the_drafter_s_own_stand_where_the_reference_has_them(read: Read) -> None:
    table = {"rope_type": "default", "mrope_section": [11, 11, 10], "rope_theta": 1e6}
    case = mk.Case(mk.contract(rope_parameters=table), mk.backbone())
    case.target = {"rope_parameters": dict(table)}
    (at,) = [kv for kv in read(case).all_keys if kv.name.endswith("dimension_sections")]
    assert list(at.value) == [mk.HEAD_DIM // 2, 0, 0, 0]
    assert at in read(case).keys
    case.target = {}
    (at,) = [kv for kv in read(case).all_keys if kv.name.endswith("dimension_sections")]
    assert list(at.value) == [11, 11, 10, 0]


def test_dynamic_without_alpha_is_plain_up_to_the_trained_context(read: Read, key: Key) -> None:
    found = read(scaled({"rope_type": "dynamic", "factor": 2.0}))
    assert key(found, "rope.scaling.type") is None
    assert "plain rope up to the trained context" in text(found, "info")
    with pytest.raises(ConfigError, match="dynamic with alpha"):
        read(scaled({"type": "dynamic", "alpha": 1000.0}))


def test_yarn_takes_what_it_leaves_out_from_the_context(read: Read, key: Key) -> None:
    found = read(scaled({"rope_type": "yarn", "factor": 4.0}))
    assert key(found, "rope.scaling.original_context_length") == 4096
    assert "the class takes max_position_embeddings" in text(found, "derived")
    found = read(scaled({"rope_type": "yarn", "original_max_position_embeddings": 1024}))
    assert key(found, "rope.scaling.factor") == 4.0
    assert "YaRN factor 4" in text(found, "derived")
    found = read(scaled({"rope_type": "yarn", "factor": 4.0}, original_max_position_embeddings=2048))
    assert key(found, "rope.scaling.original_context_length") == 2048


def test_llama3_takes_its_release_s_values(read: Read) -> None:
    full = LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    short = {"rope_type": "llama3", "original_max_position_embeddings": 512}
    wanted = factors(read(scaled(full)))
    found = read(scaled(short))
    np.testing.assert_array_equal(factors(found), wanted)
    for name in ("low_freq_factor 1", "high_freq_factor 4", "factor 8"):
        assert name in text(found, "derived")


def test_scaling_beside_default_parameters_is_not_lost_in_silence(read: Read, key: Key) -> None:
    """As transformers reads such a config: rope_scaling counts."""
    case = scaled(YARN, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    del case.config["rope_theta"]
    found = read(case)
    assert key(found, "rope.scaling.type") == "yarn"
    assert key(found, "rope.freq_base") == 5e5
    (note,) = [note for note in found.notes if "rope_scaling counts" in note.text]
    assert note.guess
    same = scaled(YARN, rope_parameters=YARN | {"rope_theta": 1e6})
    assert "rope_scaling counts" not in text(read(same), "warning")


@pytest.mark.parametrize("name", ["global_rope_theta", "rope_global_theta", "rope_theta_global", "rotary_emb_base"])
def test_the_base_under_its_other_names(name: str, read: Read, key: Key) -> None:
    case = mk.dflash()
    case.config[name] = case.config.pop("rope_theta") / 2
    assert key(read(case), "rope.freq_base") == 500000.0


def test_norm_eps_is_rms_norm_eps(read: Read, key: Key) -> None:
    for name in ("dflash", "eagle3", "gemma4_dspark", "deepseek_v4_dspark", "gemma4_assistant"):
        case = mk.CASES[name]()
        holder = case.config.get("text_config", case.config)
        holder["norm_eps"] = holder.pop("rms_norm_eps")
        assert key(read(case), "attention.layer_norm_rms_epsilon") == 1e-6


# sliding layers -------------------------------------------------------------------------------------------------------

WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "is_causal": False}


@pytest.mark.parametrize(
    "stated",
    [
        {"rope_local_base_freq": 1e4},
        {"swa_rope_theta": 1e4},
        {"local_rope_theta": 1e4},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
    ],
)
def test_the_base_of_sliding_layers_is_written_and_its_loss_is_said(
    stated: Mapping[str, Any], read: Read, key: Key
) -> None:
    found = read(mk.Case(mk.contract(**WINDOWED, **stated), mk.backbone()))
    names = [kv.name for kv in found.keys]
    assert names.index("dflash.rope.freq_base_swa") == names.index("dflash.rope.freq_base") + 1
    assert key(found, "rope.freq_base_swa") == 1e4
    assert "gives them the main base 1e+06" in text(found, "warning")
    full = read(mk.Case(mk.contract(**stated), mk.backbone()))
    assert key(full, "rope.freq_base_swa") == 1e4
    assert "main base" not in text(full, "warning")


# options --------------------------------------------------------------------------------------------------------------


def test_the_style_of_the_rows(read: Read) -> None:
    def steps(description: Description, name: str) -> str:
        return next(plan.transform for plan in description.tensors if plan.name == name)

    q = "blk.0.attn_q.weight"
    assert steps(read("dflash"), q) == "copy"
    assert steps(read("dflash", rope_style="norm"), q) == "rope_rows"
    assert steps(read("dspark_lfm2"), q) == "rope_rows"
    assert steps(read("dspark_lfm2", rope_style="neox"), q) == "copy"
    assert steps(read("gemma4_dspark", rope_style="norm"), q) == "rope_rows"
    assert steps(read("eagle3"), q) == "rope_interleave"
    assert steps(read("eagle3", rope_style="norm"), q) == "copy"
    stated = mk.eagle3()
    stated.config["is_neox_style"] = False
    assert steps(read(stated), q) == "copy"


def test_a_partly_rotated_eagle3_head_is_refused(read: Read, key: Key) -> None:
    case = mk.eagle3()
    case.config["partial_rotary_factor"] = 0.25
    with pytest.raises(FamilyError, match="16 of 64 dimensions") as caught:
        read(case)
    assert "--rope-dimension-count 64" in str(caught.value.tip)
    assert key(read(case, rope_dimension_count=64), "rope.dimension_count") == 64
    with pytest.raises(FamilyError, match="32 of 64"):
        read(mk.eagle3(), rope_dimension_count=32)


def test_plain_and_default_agree_where_the_reference_loses_nothing(case_dir: Make) -> None:
    where = case_dir(mk.CASES["dflash_window_causal"]())
    source = convert.Source(where / "drafter"), Target.read(where / "target")
    keys = []
    for plain in (False, True):
        conversion = convert.prepare(*source, convert.Options(outtypes=("bf16",), plain=plain))
        keys.append(conversion.description.all_keys)
    assert keys[0] == keys[1]


def test_the_fixture_of_a_yarn_of_its_own_is_written(case_dir: Make, tmp_path: Path) -> None:
    where = case_dir(mk.CASES["dflash_yarn_own"]())
    conversion = convert.prepare(
        convert.Source(where / "drafter"), Target.read(where / "target"), convert.Options(outtypes=("bf16",))
    )
    (one,) = convert.write(conversion, [tmp_path / "d.gguf"], threads=1)
    gguf = open_gguf(one.path)
    assert gguf.tensors["rope_freqs.weight"].type.name == "F32"
    assert gguf.get("dflash.rope.scaling.attn_factor") == pytest.approx(1.25)

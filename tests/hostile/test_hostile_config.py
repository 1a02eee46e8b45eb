"""config.json with wrong types, negative and absurd numbers: one sentence naming file and field, at once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_convert.container.writer import layout
from dflash_convert.conversion import Options, Source, prepare
from dflash_convert.errors import DflashError, InputError, PairingError
from dflash_convert.target import Target

Prepare = Callable[..., None]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
SLIDING = {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention"] * 3}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture
def prepared(fixtures: Path, tmp_path: Path) -> Prepare:
    """Plan a conversion of the bundled drafter with fields of its config replaced (None removes one)."""
    drafter = tmp_path / "drafter"
    shutil.copytree(fixtures / "tiny-js" / "drafter", drafter)
    original = json.loads((drafter / "config.json").read_text("utf-8"))

    def call(changes: dict[str, Any]) -> None:
        config = json.loads(json.dumps(original))
        for path, value in changes.items():
            *outer, name = path.split(".")
            where = config[outer[0]] if outer else config
            if value is None:
                where.pop(name, None)
            else:
                where[name] = value
        (drafter / "config.json").write_text(json.dumps(config), "utf-8")
        conversion = prepare(Source(drafter), Target.read(fixtures / "tiny-js" / "target"), Options())
        for plan in conversion.files:
            layout(plan.keys, plan.entries)

    return call


# field -> (value, words of the message)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": "128"}, "hidden_size is '128', expected a whole number of at least 1"),
    ({"hidden_size": 0}, "hidden_size is 0, expected"),
    ({"hidden_size": -128}, "hidden_size is -128, expected"),
    ({"hidden_size": 128.5}, "hidden_size is 128.5, expected"),
    ({"hidden_size": True}, "hidden_size is True, expected"),
    ({"hidden_size": [128]}, r"hidden_size is \[128\], expected"),
    ({"hidden_size": {}}, r"hidden_size is \{\}, expected"),
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": 2**32}, "hidden_size is 4294967296, expected"),
    ({"hidden_size": 10**400}, "hidden_size is 1000000000.*, expected"),
    ({"hidden_size": 256}, "its own hidden_size is 256"),
    ({"num_hidden_layers": 2**32 - 1}, "num_hidden_layers is 4294967295, expected a whole number from 1 to 512"),
    ({"num_hidden_layers": 500}, "500 layers, the checkpoint has only 36 tensors"),
    ({"num_hidden_layers": 4}, r"no tensor for blk.3.attn_norm.weight"),
    ({"num_hidden_layers": 2}, "is of layer 2, config.json says 2 layers"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ({"head_dim": 2**31}, "config.json implies"),
    ({"intermediate_size": -1}, "intermediate_size is -1"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
    ({"max_position_embeddings": 2**40}, "max_position_embeddings is 1099511627776"),
    ({"vocab_size": 2**32 - 1}, "vocab_size is 4294967295; it must be from 1 to 2097152"),
    ({"vocab_size": 2**31}, "it must be from 1 to"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06, expected a number from 0 to 1"),
    ({"rms_norm_eps": 1e6}, "rms_norm_eps is 1000000.0"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6', expected a number"),
    ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1"),
    ({"rms_norm_eps": True}, "rms_norm_eps is True"),
    ({"final_logit_softcapping": -30.0}, "final_logit_softcapping is -30.0"),
    ({"block_size": 0}, "block_size is 0, expected a whole number from 2 to 4096"),
    ({"block_size": 2**31}, "block_size is 2147483648"),
    ({"block_size": "8"}, "block_size is '8'"),
    ({"dflash_config": []}, r"dflash_config is \[\], expected an object"),
    ({"dflash_config": "x"}, "dflash_config is 'x', expected an object"),
    ({"dflash_config.mask_token_id": 512}, "mask_token_id 512 is outside the vocabulary of 512"),
    ({"dflash_config.mask_token_id": -1}, "mask_token_id is -1"),
    ({"dflash_config.mask_token_id": "503"}, "mask_token_id is '503'"),
    ({"dflash_config.target_layer_ids": [1, 1, 3]}, r"\[1, 1, 3\]"),
    ({"dflash_config.target_layer_ids": [-2, 3, 4]}, "-2|-1"),
    ({"dflash_config.target_layer_ids": [1, 3]}, "names 2 taps, but fc.weight is made for 3"),
    ({"dflash_config.target_layer_ids": [1, 3, 99]}, "99"),
    ({"dflash_config.target_layer_ids": [1, 3, 2**40]}, "1099511627776"),
    ({"dflash_config.target_layer_ids": [1, 3, "4"]}, "expected a list of whole numbers"),
    ({"dflash_config.target_layer_ids": "1,3,4"}, "expected a list of whole numbers"),
    ({"dflash_config.target_layer_ids": [[1], [3], [4]]}, "expected a list of whole numbers"),
    ({"rope_parameters": None}, "rope_theta is missing"),
    ({"rope_parameters": "default"}, "rope_parameters is 'default', expected an object"),
    ({"rope_parameters": {"rope_theta": 0}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": -1e4}}, "rope_theta"),
    ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta is '1e4', expected a number"),
    ({"rope_parameters": {"rope_theta": 1e39}}, r"rope_theta is 1e\+39, expected a float32 number"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope"}}, "rope_type is 'longrope', expected one"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": 7}}, "rope_type is 7"),
    ({"rope_parameters": {"rope_theta": 1e4, "full_attention": 5}}, "full_attention is 5, expected an object"),
    ({"rope_parameters": {"rope_theta": 1e4, "sliding_attention": []}}, r"sliding_attention is \[\]"),
    ({"rope_parameters": {"rope_theta": 1e4, **YARN, "factor": 0}}, "factor is 0.0, expected a positive number"),
    ({"rope_parameters": {"rope_theta": 1e4, **YARN, "factor": -4}}, "factor is -4.0"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "factor is missing"),
    ({"rope_parameters": {"rope_theta": 1e4, **YARN, "extrapolation_factor": 3}}, "extrapolation_factor is 3.0"),
    ({"rope_parameters": {"rope_theta": 1e4, **YARN, "attention_factor": -1}}, "attention_factor is -1.0"),
    ({"rope_parameters": {"rope_theta": 1.0, **YARN, "truncate": False}}, "rope_theta is 1.0, expected more than 1"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "alpha": 2}}, "'dynamic with alpha'"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_dim": 32}}, "rope_dim is 32, expected the"),
    ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear"}}, "factor is missing"),
    (
        {"rope_parameters": {"rope_theta": 1e4, **LLAMA3, "low_freq_factor": 4.0}},
        "low_freq_factor is 4.0, expected less",
    ),
    ({"rope_parameters": {"rope_theta": 1e4, **LLAMA3, "high_freq_factor": 0}}, "high_freq_factor is 0.0"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 2}}, "partial_rotary_factor is 2.0"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": -0.5}}, "partial_rotary_factor is -0.5"),
    ({**SLIDING, "layer_types": ["sliding_attention"]}, "layer_types has 1 entries for 3 layers"),
    ({**SLIDING, "sliding_window": None}, "sliding_window is missing"),
    ({**SLIDING, "sliding_window": 0}, "sliding_window is 0"),
    ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
    ({"layer_types": [1, 2, 3]}, "layer_types"),
    ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
    ({"draft_vocab_size": 513}, "draft_vocab_size 513 exceeds vocab_size 512"),
    ({"draft_vocab_size": 64}, "d2t"),
    ({"architectures": ["NoSuchDrafter"], "dflash_config": None}, "NoSuchDrafter"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[json.dumps(c)[:70] for c, _ in REFUSED])
def test_refused(changes: dict[str, Any], words: str, prepared: Prepare) -> None:
    begin = time.process_time()
    with pytest.raises(InputError, match=words) as caught:
        prepared(changes)
    assert time.process_time() - begin < 2
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_fewer_tokens_than_the_target_has_is_another_pair(prepared: Prepare) -> None:
    with pytest.raises(PairingError, match=r"vocabulary-size .drafter 500 rows, target 504 tokens in 512 rows"):
        prepared({"vocab_size": 500})


def test_the_unchanged_config_is_fine(prepared: Prepare) -> None:
    prepared({})


ABSURD: tuple[Any, ...] = (True, -1, 2**63, 10**400, 1e39, "x", [1], [[1]], {"a": 1})


def test_any_field_with_any_value_ends_in_a_plan_or_one_sentence(prepared: Prepare, fixtures: Path) -> None:
    """Every field of the config, and of the objects in it, with nine absurd values: nothing else may escape."""
    config = json.loads((fixtures / "tiny-js" / "drafter" / "config.json").read_text("utf-8"))
    nested = [f"{k}.{kk}" for k, v in config.items() if isinstance(v, dict) for kk in v]
    refused = planned = 0
    for field in [*config, *nested]:
        for value in ABSURD:
            try:
                prepared({field: value})
                planned += 1
            except DflashError as error:
                refused += "\n" not in str(error)
    assert refused + planned == len(ABSURD) * len([*config, *nested])
    assert refused > 80
    assert planned > 30  # fields that nobody reads

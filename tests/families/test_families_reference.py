"""Keys that llama.cpp's converter writes of any drafter, and where it puts them: what differential runs found."""

from __future__ import annotations

import make_checkpoints as mk
import pytest
from family_cases import Key, Read


@pytest.mark.parametrize("make", [mk.eagle3, mk.eagle3_speculators, mk.gemma4_assistant, mk.dflash])
def test_is_causal_false_is_written_of_every_family(read: Read, key: Key, make: type) -> None:
    case = make()
    assert key(read(case), "attention.causal") is None
    case.config["is_causal"] = False
    assert key(read(case), "attention.causal") is False


def test_gemma_4_dspark_keys_stand_where_the_reference_has_them(read: Read) -> None:
    """Sizes that the config states stand early, those of the global layers alone behind the taps."""
    case = mk.gemma4_dspark()
    early = [kv.name for kv in read(case).keys]
    assert early[-2:] == ["dflash.attention.key_length", "dflash.attention.value_length"]
    case.config["input_embedding_scale"] = 3.0  # its value is Gemma's all the same
    late = [kv.name.removeprefix("dflash.") for kv in read(case).late_keys]
    assert late.index("embedding_scale") < late.index("target_layers")
    del case.config["head_dim"], case.config["num_key_value_heads"]
    late = [kv.name.removeprefix("dflash.") for kv in read(case).late_keys]
    at = late.index("target_layers")
    assert late[at + 1 : at + 4] == ["attention.head_count_kv", "attention.key_length", "attention.value_length"]

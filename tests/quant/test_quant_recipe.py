"""The recipe against what llama-quantize made of the parity cases, and its rules one by one.

The literal expectations below agree with ``llama-quantize --dry-run`` of llama.cpp b11434 on drafters of these shapes.
"""

from __future__ import annotations

import parity_cases
import pytest

from quant import RecipeError
from quant.recipe import FTYPES, assign, category, default_type, quantizable, visit_order


def drafter(layers, *, hidden=256, ff=512, gqa=2, head=True, embeddings=True):
    """Names and shapes of a small drafter: 8 heads of 64."""
    tensors = [("fc.weight", (hidden, 2 * hidden)), ("output_norm.weight", (hidden,))]
    if embeddings:
        tensors.append(("token_embd.weight", (100, hidden)))
    if head:
        tensors.append(("output.weight", (100, hidden)))
    for i in range(layers):
        shapes = {
            "attn_q": (512, hidden),
            "attn_k": (512 // gqa, hidden),
            "attn_v": (512 // gqa, hidden),
            "attn_output": (hidden, 512),
            "ffn_gate": (ff, hidden),
            "ffn_up": (ff, hidden),
            "ffn_down": (hidden, ff),
        }
        tensors += [(f"blk.{i}.{name}.weight", shape) for name, shape in shapes.items()]
        tensors.append((f"blk.{i}.attn_norm.weight", (hidden,)))
    return tensors


def types(tensors, ftype, **options):
    return {d.name: d.type for d in assign(tensors, ftype, **options)}


def column(found, part, layers):
    return [found[f"blk.{i}.{part}.weight"] for i in range(layers)]


def test_every_expected_file():
    seen = 0
    for case in parity_cases.CASES:
        for label, output in parity_cases.expected(case).items():
            if not label.startswith("quantize:"):
                continue
            ftype = label.split(":")[1].upper()
            tensors = [(t["name"], t["shape"][::-1]) for t in output["tensors"]]
            for tensor, decision in zip(output["tensors"], assign(tensors, ftype), strict=True):
                kept = tensor["type"] in ("F32", "BF16", "I64")
                where = f"{case} {label} {tensor['name']}"
                assert kept if decision.type is None else decision.type == tensor["type"], where
                seen += 1
    assert seen == 2105


def test_numbers_and_defaults():
    assert FTYPES["Q4_K_M"] == FTYPES["Q4_K"] == 15
    assert FTYPES["BF16"] == 32
    assert default_type("q3_k_l") == "Q3_K"
    assert default_type("mxfp4") == "MXFP4"
    assert default_type("IQ4_NL") == "IQ4_NL"
    with pytest.raises(RecipeError, match="unknown file type 'Q7'"):
        default_type("Q7")


def test_decisions_come_in_the_order_given_but_count_in_block_order():
    tensors = drafter(8)
    forward, backward = assign(tensors, "Q4_K_M"), assign(tensors[::-1], "Q4_K_M")
    assert forward == backward[::-1]
    assert sorted(["blk.10.a", "blk.2.a", "output.weight"], key=visit_order) == ["output.weight", "blk.2.a", "blk.10.a"]


@pytest.mark.parametrize(
    ("ftype", "gqa", "attn_v", "ffn_down", "attn_output"),
    [
        ("Q2_K", 2, ["Q3_K"] * 8, ["Q3_K"] * 8, "Q3_K"),
        ("Q2_K", 4, ["Q4_K"] * 8, ["Q3_K"] * 8, "Q3_K"),
        ("Q3_K_S", 2, ["Q3_K"] * 8, ["Q3_K"] * 8, "Q3_K"),
        ("Q3_K_M", 2, ["Q5_K"] * 2 + ["Q4_K"] * 6, ["Q4_K"] * 8, "Q4_K"),
        ("Q3_K_L", 2, ["Q5_K"] * 8, ["Q5_K"] * 8, "Q5_K"),
        ("Q4_K_S", 2, ["Q5_K"] * 4 + ["Q4_K"] * 4, ["Q5_K"] + ["Q4_K"] * 7, "Q4_K"),
        (
            "Q4_K_M",
            2,
            ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"],
            ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"],
            "Q4_K",
        ),
        ("Q5_K_S", 2, ["Q5_K"] * 8, ["Q5_K"] * 8, "Q5_K"),
        (
            "Q5_K_M",
            2,
            ["Q6_K", "Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q5_K", "Q6_K", "Q6_K"],
            ["Q6_K", "Q5_K", "Q5_K", "Q6_K", "Q5_K", "Q5_K", "Q6_K", "Q6_K"],
            "Q5_K",
        ),
        ("IQ4_NL", 2, ["IQ4_NL"] * 8, ["Q5_K"] + ["IQ4_NL"] * 7, "IQ4_NL"),
        ("IQ4_XS", 4, ["Q5_K"] * 8, ["Q5_K"] + ["IQ4_XS"] * 7, "IQ4_XS"),
        ("Q4_0", 2, ["Q4_0"] * 8, ["Q4_0"] * 8, "Q4_0"),
    ],
)
def test_mixes_over_eight_layers(ftype, gqa, attn_v, ffn_down, attn_output):
    found = types(drafter(8, gqa=gqa), ftype)
    assert column(found, "attn_v", 8) == attn_v
    assert column(found, "ffn_down", 8) == ffn_down
    assert column(found, "attn_output", 8) == [attn_output] * 8
    assert found["output.weight"] == "Q6_K"
    assert found["token_embd.weight"] == found["fc.weight"] == default_type(ftype)
    assert found["output_norm.weight"] is None


def test_q3_k_m_favours_the_first_sixteenth():
    assert column(types(drafter(32), "Q3_K_M"), "ffn_down", 3) == ["Q5_K", "Q5_K", "Q4_K"]


def test_importance_weights_move_the_first_layers():
    assert column(types(drafter(8), "Q4_0", imatrix=True), "ffn_down", 2) == ["Q4_1", "Q4_0"]
    assert column(types(drafter(8), "Q5_0", imatrix=True), "ffn_down", 2) == ["Q5_1", "Q5_0"]
    assert column(types(drafter(8), "IQ4_XS", imatrix=True), "ffn_down", 2) == ["IQ4_XS", "IQ4_XS"]


def test_q2_k_s_needs_importance_weights():
    with pytest.raises(RecipeError, match="needs importance weights"):
        assign(drafter(8), "Q2_K_S")
    many = types(drafter(8, gqa=4), "Q2_K_S", imatrix=True)
    assert column(many, "ffn_down", 2) == ["Q4_K", "Q2_K"]
    assert many["blk.0.attn_v.weight"] == "Q4_K"
    assert types(drafter(8, gqa=2), "Q2_K_S", imatrix=True)["blk.0.attn_v.weight"] == "Q2_K"
    ends = [("token_embd.weight", (9, 256)), ("output.weight", (9, 256))]
    assert types(ends, "Q2_K_S") == {"token_embd.weight": "Q2_K", "output.weight": "Q6_K"}


def test_head_and_tied_embeddings():
    assert types(drafter(1, head=False), "Q4_K_M")["token_embd.weight"] == "Q6_K"
    assert types(drafter(1), "Q8_0")["output.weight"] == "Q8_0"
    assert types(drafter(1, hidden=96), "Q4_K_M")["output.weight"] == "Q8_0"
    found = assign([("output.weight", (9, 40))], "Q4_0")[0]
    assert (found.type, found.fallback_from) == ("F16", "Q8_0")
    assert types(drafter(1, head=False), "Q4_0", output_type="q5_0")["token_embd.weight"] == "Q5_0"


def test_mxfp4_is_for_stacks():
    tensors = [("blk.0.ffn_up_exps.weight", (4, 64, 64)), ("fc.weight", (64, 64)), ("output.weight", (9, 64))]
    assert list(types(tensors, "MXFP4_MOE").values()) == ["MXFP4", "Q8_0", "Q8_0"]


@pytest.mark.parametrize(
    ("ftype", "k", "expected"),
    [
        ("Q2_K", 64, "Q4_0"),
        ("Q3_K_S", 64, "Q4_0"),
        ("Q4_K_S", 64, "Q5_0"),
        ("Q5_K_S", 64, "Q5_1"),
        ("Q6_K", 64, "Q8_0"),
        ("IQ4_XS", 64, "IQ4_NL"),
        ("Q4_K_S", 40, "F16"),
        ("Q8_0", 40, "F16"),
    ],
)
def test_rows_that_do_not_fit_fall_back(ftype, k, expected):
    found = assign([("fc.weight", (64, k))], ftype)[0]
    assert found.type == expected
    assert found.fallback_from == default_type(ftype)
    assert f"rows of {k}" in found.reason


def test_pure_and_overrides():
    tensors = drafter(8)
    assert set(types(tensors, "Q4_K_M", pure=True).values()) == {"Q4_K", None}
    rules = [("attn_v", "q8_0"), (r"BLK\.[02]\.ffn", "iq4_nl"), ("ffn", "f16")]
    found = types(tensors, "Q4_K_M", overrides=rules)
    assert column(found, "attn_v", 8) == ["Q8_0"] * 8
    assert column(found, "ffn_up", 3) == ["IQ4_NL", "F16", "IQ4_NL"]
    assert found["blk.0.attn_q.weight"] == "Q4_K"


def test_an_overridden_tensor_is_not_counted():
    found = types(drafter(8), "Q4_K_S", overrides=[(r"blk\.0\.attn_v", "q8_0")])
    assert column(found, "attn_v", 8) == ["Q8_0"] + ["Q5_K"] * 4 + ["Q4_K"] * 3


def test_explicit_ends():
    found = types(drafter(1), "Q4_0", output_type="f16", token_embedding_type="bf16")
    assert (found["output.weight"], found["token_embd.weight"]) == ("F16", "BF16")
    with pytest.raises(RecipeError, match="rows of 96"):
        assign(drafter(1, hidden=96), "Q4_0", token_embedding_type="q4_k")
    named = [("per_layer_token_embd.weight", (9, 256)), ("output.weight", (9, 256))]
    options = {"token_embedding_type": "q8_0", "overrides": [("per_layer", "q5_k")]}
    assert types(named, "Q4_0", **options)["per_layer_token_embd.weight"] == "Q5_K"


def test_float_files():
    found = types(drafter(1), "BF16")
    assert set(found.values()) == {"BF16", None}
    with pytest.raises(RecipeError, match="no effect"):
        assign(drafter(1), "F16", overrides=[("attn", "q8_0")])


def test_unusable_options_are_named():
    with pytest.raises(RecipeError, match="regular expression"):
        assign(drafter(1), "Q4_0", overrides=[("(", "q8_0")])
    with pytest.raises(RecipeError, match="unknown tensor type 'q9'"):
        assign(drafter(1), "Q4_0", output_type="q9")


def test_given_sizes_win_over_derived_ones():
    assert column(types(drafter(2), "Q4_K_S", n_layer=16), "ffn_down", 2) == ["Q5_K", "Q5_K"]
    assert types(drafter(1, gqa=1), "Q2_K", gqa=8)["blk.0.attn_v.weight"] == "Q4_K"


def test_what_is_never_quantized():
    assert quantizable("fc.weight", (2, 32))
    assert not quantizable("conf_proj.weight", (1, 320))
    assert not quantizable("blk.0.attn_norm.weight", (2, 32))
    assert not quantizable("blk.0.attn_conv_base", (2, 2, 32))
    assert not quantizable("token_types.weight", (2, 32))
    assert category("blk.0.attn_qkv.weight") == "attn_v"
    assert category("blk.0.attn_q.weight") == "other"

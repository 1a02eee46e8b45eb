"""Importance weights against ggml_quantize_chunk with the same weights.

libggml-python's C is a little older than the llama.cpp this project follows: make_qkx3_quants has since learned to
clip before it rounds. The two differ only where a weight is zero and its value is an extreme outlier, so zero
weights are tried on well-behaved values.
"""

from __future__ import annotations

import ggml_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quant

WEIGHTED = [name for name, kind in quant.TYPES.items() if kind.imatrix]


def weights(k, seed=5):
    r = np.random.default_rng(seed)
    chi = (r.standard_normal(k) ** 2).astype(np.float32)
    some_zero = np.where(r.random(k) < 0.3, np.float32(0), chi)
    block_zero = chi.copy()
    block_zero[: min(k, 256)] = 0
    return {
        "chi": chi,
        "ones": np.ones(k, np.float32),
        "wide": np.exp(r.standard_normal(k) * 6).astype(np.float32),
        "tiny": (r.random(k) * 1e-12).astype(np.float32),
        "some_zero": some_zero,
        "block_zero": block_zero,
        "zero": np.zeros(k, np.float32),
    }


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("kind", ["chi", "wide", "tiny"])
def test_positive_weights_on_every_input_class(name, kind):
    w = weights(512)[kind]
    for case, x in oracle.inputs(512, 3).items():
        assert np.array_equal(quant.quantize(x, name, imatrix=w), oracle.ggml_quantize(x, name, w)), case


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("kind", ["ones", "some_zero", "block_zero", "zero"])
def test_zero_and_equal_weights(name, kind):
    w = weights(512)[kind]
    data = oracle.inputs(512, 3)
    for case in ("normal", "uniform", "bf16", "constant", "both_zeros", "ties"):
        x = data[case]
        assert np.array_equal(quant.quantize(x, name, imatrix=w), oracle.ggml_quantize(x, name, w)), case


@settings(max_examples=60)
@given(
    name=st.sampled_from(WEIGHTED),
    rows=st.integers(1, 4),
    blocks=st.integers(1, 5),
    kind=st.sampled_from(["chi", "ones", "tiny"]),
    seed=st.integers(0, 2**16),
    chunk=st.sampled_from([1, 1024, 1 << 18]),
)
def test_any_shape_and_chunk(name, rows, blocks, kind, seed, chunk):
    k = quant.TYPES[name].block * blocks
    w = weights(k, seed)[kind]
    x = oracle.inputs(k, rows, seed)["normal"]
    encoder = quant.Encoder(name, k, imatrix=w, chunk=chunk)
    out = np.empty((rows, encoder.row_nbytes), np.uint8)
    encoder.encode(x, out)
    assert np.array_equal(out, oracle.ggml_quantize(x, name, w))


def test_weights_change_the_bytes_of_the_types_that_take_them():
    x, w = oracle.inputs(512, 4)["normal"], weights(512)["wide"]
    for name in quant.TYPES:
        same = np.array_equal(quant.quantize(x, name, imatrix=w), quant.quantize(x, name))
        assert same != quant.TYPES[name].imatrix, name


def test_threads_share_the_weights():
    x, w = oracle.inputs(512, 8)["normal"], weights(512)["chi"]
    assert np.array_equal(quant.quantize(x, "Q4_K", imatrix=w, threads=3), oracle.ggml_quantize(x, "Q4_K", w))


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (np.ones(512), quant.ShapeError),
        (np.ones(256, np.float32), quant.ShapeError),
        (np.full(512, np.nan, np.float32), quant.NonFiniteError),
        (np.full(512, -1, np.float32), quant.NonFiniteError),
    ],
)
def test_unusable_weights_are_refused(bad, error):
    with pytest.raises(error, match="importance weights"):
        quant.quantize(np.zeros((1, 512), np.float32), "Q4_K", imatrix=bad)

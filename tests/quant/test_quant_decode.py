"""Every decoder against ggml's to_float, bit for bit."""

from __future__ import annotations

import ggml_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quant


@pytest.mark.parametrize("name", quant.TYPES)
def test_bits_equal_ggml_on_encoded_rows(name):
    for case, x in oracle.inputs(512, 3).items():
        data = oracle.ggml_quantize(x, name)
        expected = oracle.ggml_dequantize(data, name, 512)
        assert np.array_equal(quant.dequantize(data, name).view(np.uint32), expected.view(np.uint32)), case


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted(set(quant.TYPES) - {"F32"})),
    rows=st.integers(1, 4),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    chunk=st.sampled_from([1, 512, 1 << 16]),
)
def test_any_bytes_decode_as_in_c(name, rows, blocks, seed, chunk):
    """Arbitrary bytes hold NaN and Inf scales too."""
    kind = quant.TYPES[name]
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks * kind.nbytes), dtype=np.uint8)
    k = blocks * kind.block
    out = np.empty((rows, k), np.float32)
    quant.Decoder(name, k, chunk=chunk).decode(data, out)
    expected = oracle.ggml_dequantize(data, name, k)
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


def test_all_halves_decode_as_in_c():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for name in ("F16", "BF16"):
        data = patterns.view(np.uint8).reshape(1, -1)
        expected = oracle.ggml_dequantize(data, name, 1 << 16)
        assert np.array_equal(quant.dequantize(data, name).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", quant.TYPES)
def test_decoded_values_stay_near_the_source(name):
    x = oracle.inputs(512, 4)["uniform"]
    bits = quant.TYPES[name].nbytes * 8 / quant.TYPES[name].block
    mantissa = min(bits, 8)
    error = np.abs(quant.dequantize(quant.quantize(x, name), name) - x).max()
    assert error < 8 / 2**mantissa


def test_threads_give_the_same_values():
    data = quant.quantize(oracle.inputs(512, 9)["normal"], "Q6_K")
    assert np.array_equal(quant.dequantize(data, "Q6_K", threads=4), quant.dequantize(data, "Q6_K", threads=1))


@pytest.mark.parametrize(
    "data", [np.zeros(18, np.uint8), np.zeros((1, 19), np.uint8), np.zeros((1, 0), np.uint8)], ids=str
)
def test_partial_blocks_are_refused(data):
    with pytest.raises(quant.ShapeError, match="blocks × 18"):
        quant.dequantize(data, "Q4_0")


def test_decoder_refuses_wrong_arrays():
    decoder = quant.Decoder("Q4_0", 64)
    data, out = np.zeros((2, 36), np.uint8), np.zeros((2, 64), np.float32)
    for bad in (data.view(np.int8), data[0], data[:, :18]):
        with pytest.raises(quant.ShapeError, match="data is"):
            decoder.decode(bad, out)
    for wrong in (out.astype(np.float64), out[:1]):
        with pytest.raises(quant.ShapeError, match="output is"):
            decoder.decode(data, wrong)
    with pytest.raises(quant.ShapeError, match="contiguous"):
        decoder.decode(data, np.zeros((64, 2), np.float32).T)

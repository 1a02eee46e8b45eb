"""Every encoder against ggml_quantize_chunk, byte for byte."""

from __future__ import annotations

import ggml_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quant

CLASSES = sorted(oracle.inputs(32, 1))


def bf16(x):
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name", quant.TYPES)
@pytest.mark.parametrize("case", CLASSES)
def test_bytes_equal_ggml(name, case):
    x = oracle.inputs(512, 12)[case]
    assert np.array_equal(quant.quantize(x, name), oracle.ggml_quantize(x, name))


@pytest.mark.parametrize("name", quant.TYPES)
def test_bf16_patterns_and_halves_are_read_as_their_values(name):
    data = oracle.inputs(512, 5)
    for x in (data["bf16"], data["outlier"], data["subnormal"]):
        values = ((x.view(np.uint32) >> 16) << 16).view(np.float32)
        assert np.array_equal(quant.quantize(bf16(x), name), oracle.ggml_quantize(values, name))
        half = x.astype(np.float16)
        assert np.array_equal(quant.quantize(half, name), oracle.ggml_quantize(half.astype(np.float32), name))


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(quant.TYPES)),
    rows=st.integers(1, 5),
    blocks=st.integers(1, 6),
    case=st.sampled_from(CLASSES),
    seed=st.integers(0, 2**16),
    scale=st.floats(2.0**-20, 8.0, width=32),
    chunk=st.sampled_from([1, 256, 1024, 1 << 18]),
)
def test_any_shape_scale_and_chunk(name, rows, blocks, case, seed, scale, chunk):
    k = quant.TYPES[name].block * blocks
    x = oracle.inputs(k, rows, seed)[case]
    if case != "outlier":
        x = x * np.float32(scale)
    encoder = quant.Encoder(name, k, chunk=chunk)
    out = np.empty((rows, encoder.row_nbytes), np.uint8)
    encoder.encode(x, out)
    assert np.array_equal(out, oracle.ggml_quantize(x, name))


@pytest.mark.parametrize("name", quant.TYPES)
def test_one_encoder_serves_chunks_of_changing_size(name):
    x = oracle.inputs(768, 9)["normal"]
    encoder = quant.Encoder(name, 768)
    out = np.empty((9, encoder.row_nbytes), np.uint8)
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        encoder.encode(x[start:stop], out[start:stop])
    assert np.array_equal(out, oracle.ggml_quantize(x, name))
    values = oracle.inputs(768, 9)["bf16"]
    for source in (bf16(values), values.astype(np.float16)):
        for start, stop in ((0, 4), (4, 9)):
            encoder.encode(source[start:stop], out[start:stop])
        expected = values if source.dtype == np.uint16 else source.astype(np.float32)
        assert np.array_equal(out, oracle.ggml_quantize(expected, name))


def test_mxfp4_exponent_beside_every_power_of_two():
    """log2f rounds values just below a power of two up to it: the exponent must follow C for all of them."""
    exponents = np.arange(-126, 127)
    steps = np.arange(-12, 13)
    powers = np.exp2(exponents.astype(np.float64)).astype(np.float32).view(np.uint32)
    peaks = (powers[:, None].astype(np.int64) + steps).astype(np.uint32).view(np.float32).reshape(-1, 1)
    x = peaks * np.linspace(-1, 1, 32, dtype=np.float32)
    assert np.array_equal(quant.quantize(x, "MXFP4"), oracle.ggml_quantize(x, "MXFP4"))


def test_f16_and_bf16_round_to_even_over_all_exponents():
    r = np.random.default_rng(3)
    bits = r.integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    small = x[np.abs(x) < 65504].reshape(1, -1)
    assert np.array_equal(quant.quantize(small, "F16"), oracle.ggml_quantize(small, "F16"))
    x = x[np.abs(x) < 3e38].reshape(1, -1)
    assert np.array_equal(quant.quantize(x, "BF16"), oracle.ggml_quantize(x, "BF16"))


def test_copies_of_the_same_type_are_exact():
    patterns = np.arange(0x7C00, dtype=np.uint16).reshape(1, -1)
    assert quant.quantize(patterns, "BF16").tobytes() == patterns.tobytes()
    assert quant.quantize(patterns.view(np.float16), "F16").tobytes() == patterns.tobytes()


def test_threads_give_the_same_bytes():
    x = oracle.inputs(4096, 300)["weights"]
    expected = oracle.ggml_quantize(x, "Q4_0")
    assert np.array_equal(quant.quantize(x, "Q4_0"), expected)
    assert np.array_equal(quant.quantize(x, "Q4_0", threads=3), expected)
    assert np.array_equal(quant.quantize(x[:2], "Q4_0", threads=8), expected[:2])


def test_rows_per_call_fill_the_workspace():
    assert quant.Encoder("Q8_0", 4096).rows_per_call == quant.CHUNK // 4096
    assert quant.Encoder("Q8_0", quant.CHUNK * 2).rows_per_call == 1

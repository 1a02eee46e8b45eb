"""NaN, Inf and scales beyond float16 never become bytes; wrong arrays and names are named."""

from __future__ import annotations

import numpy as np
import pytest

import quant


def rows(n=7, k=512):
    return np.random.default_rng(1).standard_normal((n, k)).astype(np.float32)


def weights(k=512):
    return np.ones(k, np.float32)


@pytest.mark.parametrize("name", quant.TYPES)
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 17, 511])
def test_non_finite_names_the_row(name, value, column):
    x = rows()
    x[5, column] = value
    for source in (x, x.astype(np.float16), (x.view(np.uint32) >> 16).astype(np.uint16)):
        with pytest.raises(quant.NonFiniteError, match="row 5 holds NaN or Inf") as caught:
            quant.quantize(source, name)
        assert caught.value.row == 5
    with pytest.raises(quant.NonFiniteError):
        quant.quantize(x, name, imatrix=weights())


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF800001])
@pytest.mark.parametrize("name", quant.TYPES)
def test_every_nan_pattern_is_seen(name, bits):
    x = rows(2)
    x.view(np.uint32)[1, 300] = bits
    with pytest.raises(quant.NonFiniteError) as caught:
        quant.quantize(x, name)
    assert caught.value.row == 1


@pytest.mark.parametrize("name", sorted(set(quant.TYPES) - {"F32", "BF16", "MXFP4"}))
def test_scale_overflow_names_the_row(name):
    x = rows()
    x[3, 40:50] = 1e10
    x[6, 40:50] = -1e10
    for imatrix in (None, weights()):
        with pytest.raises(quant.ScaleOverflowError, match=f"row 3 is too large for {name}") as caught:
            quant.quantize(x, name, imatrix=imatrix)
        assert caught.value.row == 3


def test_a_minimum_can_overflow_alone():
    x = np.full((2, 32), -1e6, np.float32)
    x[0] = 1
    for name in ("Q4_1", "Q5_1"):
        with pytest.raises(quant.ScaleOverflowError) as caught:
            quant.quantize(x, name)
        assert caught.value.row == 1


def test_rounding_up_to_infinity_is_an_overflow():
    with pytest.raises(quant.ScaleOverflowError):
        quant.quantize(np.full((1, 4), 3.4e38, np.float32), "BF16")
    with pytest.raises(quant.ScaleOverflowError):
        quant.quantize(np.full((1, 4), 65520, np.float32), "F16")
    assert quant.quantize(np.full((1, 1), 65519, np.float32), "F16").view(np.float16)[0, 0] == 65504


def test_row_is_counted_from_the_whole_matrix_over_threads_and_chunks():
    x = rows(40)
    x[33, 5] = np.nan
    x[38, 5] = np.nan
    with pytest.raises(quant.NonFiniteError, match="row 33 ") as caught:
        quant.quantize(x, "Q8_0", threads=4)
    assert caught.value.row == 33
    encoder = quant.Encoder("Q8_0", 512, chunk=1024)
    with pytest.raises(quant.NonFiniteError) as caught:
        encoder.encode(x, np.empty((40, encoder.row_nbytes), np.uint8))
    assert caught.value.row == 33


def test_errors_without_a_row_pass_through_threads():
    with pytest.raises(quant.ShapeError) as caught:
        quant.quantize(rows(4), "Q4_K", imatrix=np.ones(3, np.float32), threads=2)
    assert caught.value.row is None


def test_an_encoder_goes_on_after_an_error():
    x = rows(2)
    encoder = quant.Encoder("Q4_K", 512)
    out = np.empty((2, encoder.row_nbytes), np.uint8)
    bad = x.copy()
    bad[1, 1] = np.inf
    with pytest.raises(quant.NonFiniteError):
        encoder.encode(bad, out)
    encoder.encode(x, out)
    assert np.array_equal(out, quant.quantize(x, "Q4_K"))


def test_unknown_type_lists_the_known_ones():
    with pytest.raises(quant.UnknownTypeError, match=r"'Q9_9'.*Q4_K"):
        quant.quantize(rows(), "Q9_9")


@pytest.mark.parametrize("k", [0, 16, 100])
def test_partial_blocks_are_refused(k):
    with pytest.raises(quant.ShapeError, match=f"row of {k} elements"):
        quant.quantize(np.zeros((1, k), np.float32), "Q4_0")


def test_wrong_arrays_are_refused():
    with pytest.raises(quant.ShapeError, match=r"not \[n, k\]"):
        quant.quantize(np.zeros(32, np.float32), "Q4_0")
    with pytest.raises(quant.ShapeError, match="float64"):
        quant.quantize(np.zeros((1, 32)), "Q4_0")
    encoder = quant.Encoder("Q4_0", 32)
    with pytest.raises(quant.ShapeError, match=r"\[n, 32\]"):
        encoder.encode(np.zeros((1, 64), np.float32), np.zeros((1, 18), np.uint8))
    with pytest.raises(quant.ShapeError, match="output is"):
        encoder.encode(np.zeros((1, 32), np.float32), np.zeros((1, 19), np.uint8))
    with pytest.raises(quant.ShapeError, match="contiguous"):
        encoder.encode(np.zeros((2, 64), np.float32)[:, ::2], np.zeros((2, 18), np.uint8))


def test_quantize_takes_strided_rows():
    x = rows(4)
    assert np.array_equal(quant.quantize(x[::2], "Q8_0"), quant.quantize(x[::2].copy(), "Q8_0"))


def test_no_rows_give_no_bytes():
    assert quant.quantize(np.zeros((0, 32), np.float32), "Q4_0").shape == (0, 18)
    assert quant.dequantize(np.zeros((0, 18), np.uint8), "Q4_0").shape == (0, 32)


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        (np.float32, [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001]),
        (np.float16, [0x7C00, 0xFC00, 0x7E00, 0x7C01]),
        (np.uint16, [0x7F80, 0xFF80, 0x7FC0, 0xFF81]),
    ],
)
def test_the_first_row_that_is_not_finite(dtype, bad):
    largest = {np.float32: 0x7F7FFFFF, np.float16: 0x7BFF, np.uint16: 0x7F7F}[dtype]
    bits = np.full((6, 33), largest, np.dtype(dtype).str.replace("f", "u"))
    bits[1::2] |= 1 << (8 * bits.itemsize - 1)
    assert quant.nonfinite_row(bits.view(dtype)) is None
    assert quant.nonfinite_row(bits[:0].view(dtype)) is None
    for pattern in bad:
        wrong = bits.copy()
        wrong[4, 32] = wrong[5, 0] = pattern
        assert quant.nonfinite_row(wrong.view(dtype)) == 4
        assert quant.nonfinite_row(wrong.view(dtype)[::2]) == 2

"""Each operation against a second, slow statement of it in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from dflash_convert.forward import ops
from dflash_convert.forward.drafter import causal_conv
from dflash_convert.forward.heads import greedy, markov_walk, selector_walk

RNG = np.random.default_rng(3)


def normal(*shape: int) -> ops.F32:
    return RNG.standard_normal(shape).astype(np.float32)


def test_rms_norm() -> None:
    x, w = normal(3, 8), normal(8)
    wanted = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    assert_allclose(ops.rms_norm(x, w, 1e-6), wanted * w, rtol=1e-5)
    assert_allclose(ops.rms_norm(x, None, 1e-6), wanted, rtol=1e-5)
    assert ops.rms_norm(x, w, 1e-6).dtype == np.float32


@pytest.mark.parametrize(
    ("function", "slow"),
    [
        (ops.silu, lambda v: v / (1 + math.exp(-v))),
        (ops.gelu, lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))),
        (ops.sigmoid, lambda v: 1 / (1 + math.exp(-v))),
    ],
)
def test_activations(function: object, slow: object) -> None:
    x = normal(50) * 3
    assert_allclose(function(x), [slow(float(v)) for v in x], rtol=2e-5, atol=1e-6)  # type: ignore[operator]


def test_silu_of_very_negative_values_is_zero_without_a_warning() -> None:
    assert ops.silu(np.array([-1000.0], np.float32))[0] == 0


def test_rotation_is_a_complex_product() -> None:
    x, positions = normal(5, 2, 16), np.array([0, 1, 7, 100, 1000])
    out = ops.rotate(x, ops.rope_table(ops.Rope(10000.0, 16), positions))
    freqs = 10000.0 ** (-np.arange(8) / 8)
    turn = np.exp(1j * positions[:, None] * freqs)[:, None]
    wanted = (x[..., :8] + 1j * x[..., 8:]) * turn
    assert_allclose(out, np.concatenate([wanted.real, wanted.imag], -1), atol=2e-4)


def test_partial_rotation_leaves_the_rest() -> None:
    x = normal(2, 1, 16)
    out = ops.rotate(x, ops.rope_table(ops.Rope(10000.0, 8), np.array([3, 4])))
    assert (out[..., 8:] == x[..., 8:]).all()
    assert not (out[..., :8] == x[..., :8]).any()


def test_linear_scaling_divides_the_position() -> None:
    scaled = ops.rope_table(ops.Rope(10000.0, 8, "linear", 4.0), np.array([8]))
    plain = ops.rope_table(ops.Rope(10000.0, 8), np.array([2]))
    assert_allclose(scaled, plain, atol=1e-6)


def test_yarn_keeps_short_and_stretches_long_wavelengths() -> None:
    rope = ops.Rope(10000.0, 64, "yarn", 16.0, original_context=4096)
    cos, sin = ops.rope_table(rope, np.array([5]))
    scale = 1 + 0.1 * math.log(16.0)
    freqs = 10000.0 ** (-np.arange(32) / 32)
    assert_allclose(np.hypot(cos, sin), scale, rtol=1e-5)
    assert_allclose(cos[0, 0], math.cos(5) * scale, rtol=1e-4)  # one turn in 6 positions: as trained
    assert_allclose(sin[0, -1], math.sin(5 * freqs[-1] / 16) * scale, rtol=1e-4)  # one turn in 47,000: stretched


def test_frequency_factors_divide_the_angles() -> None:
    factors = np.array([1, 2, 4, 8], np.float32)
    angle = np.arctan2(*ops.rope_table(ops.Rope(100.0, 8), np.array([1]), factors)[::-1])
    assert_allclose(angle[0], 100.0 ** (-np.arange(4) / 4) / factors, rtol=1e-5)


def test_the_fourth_position_of_a_text_token_is_zero() -> None:
    cos, _ = ops.rope_table(ops.Rope(100.0, 8, sections=(1, 1, 1, 1)), np.array([9]))
    assert cos[0, 3] == 1
    assert (cos[0, :3] != 1).all()


def test_attention_against_loops() -> None:
    q, k, v, sinks = normal(3, 4, 8), normal(6, 2, 8), normal(6, 2, 8), normal(4)
    mask = np.arange(3, 6)[:, None] >= np.arange(6)[None, :]
    out = ops.attention(q, k, v, 0.3, mask, sinks).reshape(3, 4, 8)
    for i in range(3):
        for head in range(4):
            scores = [0.3 * float(q[i, head] @ k[j, head // 2]) for j in range(6) if mask[i, j]]
            weights = np.exp([*scores, sinks[head]])
            wanted = sum(weights[j] * v[j, head // 2] for j in range(len(scores))) / weights.sum()
            assert_allclose(out[i, head], wanted, rtol=1e-4, atol=1e-6)


def test_causal_conv_against_loops() -> None:
    x, kernel = normal(3, 4), normal(3, 5, 4)  # more taps than positions
    wanted = [[sum(kernel[t, j, c] * x[t - j, c] for j in range(min(5, t + 1))) for c in range(4)] for t in range(3)]
    assert_allclose(causal_conv(x, kernel), wanted, rtol=1e-5, atol=1e-6)


def test_greedy_gaps() -> None:
    draft = greedy(np.array([[1, 5, 3], [2, 0, 9]], np.float32))
    assert (draft.tokens, draft.gaps) == ((1, 2), (2.0, 7.0))
    assert draft.first(1).tokens == (1,)


def test_markov_bias_follows_the_drafted_token() -> None:
    """Row 0 alone would give 0; the bias of the previous token moves each choice on by one."""
    weights = {"markov_w1.weight": np.eye(3, dtype=np.float32), "markov_w2.weight": np.roll(np.eye(3), 1, 0) * 5}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    hidden, logits = normal(3, 4), np.zeros((3, 3), np.float32)
    assert markov_walk(weights, hidden, logits, 2, 0).tokens == (0, 1, 2)
    assert markov_walk(weights, hidden, logits, 2, 1).tokens == (0, 1)


def test_markov_confidence() -> None:
    weights = {
        "markov_w1.weight": np.array([[2.0], [3.0]], np.float32),
        "markov_w2.weight": np.zeros((2, 1), np.float32),
        "conf_proj.weight": np.array([[1.0, 0.5]], np.float32),
        "conf_proj.bias": np.array([-1.0], np.float32),
    }
    hidden, logits = np.array([[0.25]], np.float32), np.array([[1.0, 0.0]], np.float32)
    draft = markov_walk(weights, hidden, logits, 1, 0)
    assert draft.confidences == pytest.approx([1 / (1 + math.exp(-(0.25 + 1.5 - 1)))])


def test_reduced_vocabulary_keeps_the_other_rows_out() -> None:
    weights = {
        "markov_w1.weight": np.ones((4, 1), np.float32),
        "markov_w2.weight": np.array([[0.0], [9.0]], np.float32),
        "d2t": np.array([1, 3]),
    }
    logits = np.array([[-np.inf, 5.0, -np.inf, 0.0]], np.float32)
    draft = markov_walk(weights, normal(1, 2), logits, 0, 0)
    assert (draft.tokens, draft.gaps) == ((3,), (4.0,))


def test_selector_weighs_pairs_against_logits() -> None:
    """Token 1 has the better logit at position 1, but the pair (anchor 0, token 2) outweighs it."""
    weights = {
        "selector_hidden.weight": np.ones((1, 2), np.float32),
        "selector_predecessor.weight": np.array([[1], [0], [2], [0]], np.float32),
        "selector_successor.weight": np.array([[0], [0], [3], [1]], np.float32),
    }
    hidden = np.full((3, 2), 0.5, np.float32)
    logits = np.array([[0, 0, 0, 0], [0, 2, 1, -9], [0, 3, -9, 2]], np.float32)
    draft = selector_walk(weights, hidden, logits, 0, 2)
    assert draft.tokens == (2, 3)  # 1 + 3·1 > 2; then 2 + 1·2 > 3
    assert draft.gaps == (2.0, 1.0)


def test_half_caches_round() -> None:
    cache = ops.KVCache(1, 1, 2, half=True)
    k, _ = cache.view(0, 0, np.full((1, 1, 2), 1 / 3, np.float32), normal(1, 1, 2))
    assert (k == np.float32(np.float16(1 / 3))).all()


def test_cache_rows_outlive_growth_and_truncation() -> None:
    cache = ops.KVCache(1, 1, 1)
    for i in range(5):
        row = np.full((1, 1, 1), i, np.float32)
        cache.view(0, cache.length, row, row)
        cache.advance(1)
    cache.truncate(3)
    k, _ = cache.view(0, cache.length, np.full((1, 1, 1), 9, np.float32), np.zeros((1, 1, 1), np.float32))
    assert k.reshape(-1).tolist() == [0, 1, 2, 9]

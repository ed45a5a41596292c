"""Block attention with grouped queries against a loop in float64, and its per-head norm."""

import numpy as np
import pytest

from kdnb.reference.draft_attention import draft_attention
from kdnb.reference.head_norm_rope import head_norm_rope
from kdnb.reference.rms_norm import rms_norm
from kdnb.reference.rope import rope_rows, rotate_half


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_against_a_loop(heads, kv_heads, masked):
    rng = np.random.default_rng(heads)
    query = rng.standard_normal((5, heads, 8)).astype(np.float32)
    keys, values = rng.standard_normal((2, 9, kv_heads, 8)).astype(np.float32)
    visible = rng.random((5, 9)) < 0.5
    visible[:, 0] = True
    ours = draft_attention(query, keys, values, 0.35, visible if masked else None)
    for row in range(5):
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = keys[:, kv].astype(np.float64) @ query[row, head] * 0.35
            if masked:
                scores[~visible[row]] = -np.inf
            weights = np.exp(scores - scores.max())
            expected = weights @ values[:, kv] / weights.sum()
            got = ours[row, head * 8 : head * 8 + 8]
            np.testing.assert_allclose(got, expected, atol=2e-6)


def test_heads_are_normed_one_by_one_and_then_rotated():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 2 * 8)).astype(np.float32)
    weight = rng.standard_normal(8).astype(np.float32)
    rope = rope_rows(np.array([1, 0.5, 0.2, 0.1], dtype=np.float32), np.arange(3), 1.0, np.dtype(np.float32))
    ours = head_norm_rope(x, weight, 1e-6, rope)
    for head in range(2):
        normed = rms_norm(x[:, head * 8 : head * 8 + 8], weight, 1e-6)[:, None]
        np.testing.assert_allclose(ours[:, head : head + 1], rotate_half(normed, rope), atol=1e-6)

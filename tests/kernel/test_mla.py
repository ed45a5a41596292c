"""The absorbed form equals the expanded one: queries, cache rows and values of MLA."""

import numpy as np
import pytest

from kdnb.reference.append_latent import append_latent
from kdnb.reference.mla_query import mla_query
from kdnb.reference.mla_value import mla_value
from kdnb.reference.rms_norm import rms_norm
from kdnb.reference.rope import rope_rows, rotate_half, rotate_interleaved

HEADS, NOPE, ROPE, VALUE, LORA = 3, 6, 4, 5, 10  # v_head_dim differs from qk_nope_head_dim


def setup(rows=7, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, HEADS * (NOPE + ROPE))).astype(np.float32)
    kv_b = rng.standard_normal((HEADS, NOPE + VALUE, LORA)).astype(np.float32)
    kv_a = rng.standard_normal((rows, LORA + ROPE)).astype(np.float32)
    norm = rng.standard_normal(LORA).astype(np.float32)
    inv_freq = np.array([1.0, 0.1], dtype=np.float32)
    rope = rope_rows(inv_freq, np.arange(rows) + 2, 1.0, np.dtype(np.float32))
    return q, kv_b, kv_a, norm, rope


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("by_row", [True, False])
def test_absorbed_scores_equal_expanded_scores(interleaved, by_row):
    q, kv_b, kv_a, norm, rope = setup()
    cache_rows = np.zeros_like(kv_a)
    append_latent(cache_rows, kv_a, norm, 1e-6, rope, interleaved=interleaved)
    query = mla_query(q, kv_b[:, :NOPE], rope, interleaved=interleaved, by_row=by_row)
    absorbed = np.einsum("thd,sd->hts", query, cache_rows)

    rotate = rotate_interleaved if interleaved else rotate_half
    latent = rms_norm(kv_a[:, :LORA], norm, 1e-6).astype(np.float64)
    heads = q.reshape(len(q), HEADS, -1)
    k_nope = np.einsum("sl,hnl->shn", latent, kv_b[:, :NOPE])
    expanded = np.einsum("thn,shn->hts", heads[..., :NOPE], k_nope)
    k_rope = rotate(kv_a[:, None, LORA:], rope)[:, 0]
    expanded += np.einsum("thr,sr->hts", rotate(heads[..., NOPE:], rope), k_rope)
    np.testing.assert_allclose(absorbed, expanded, atol=5e-5, rtol=1e-5)


def test_the_rope_key_is_not_normed():
    _, _, kv_a, norm, rope = setup()
    rows = np.zeros((2, *kv_a.shape), dtype=np.float32)
    append_latent(rows[0], kv_a, norm, 1e-6, rope, interleaved=True)
    append_latent(rows[1], kv_a * 3, norm, 1e-6, rope, interleaved=True)
    np.testing.assert_allclose(rows[0, :, :LORA], rows[1, :, :LORA], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows[0, :, LORA:] * 3, rows[1, :, LORA:], rtol=1e-5)


@pytest.mark.parametrize("by_row", [True, False])
def test_values_against_a_loop(by_row):
    rng = np.random.default_rng(2)
    context = rng.standard_normal((4, HEADS, LORA)).astype(np.float32)
    w_uv = rng.standard_normal((HEADS, VALUE, LORA)).astype(np.float32)
    expected = np.stack([np.concatenate([w_uv[h] @ context[t, h] for h in range(HEADS)]) for t in range(4)])
    np.testing.assert_allclose(mla_value(context, w_uv, by_row=by_row), expected, atol=1e-5)

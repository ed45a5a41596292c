"""Tree-verify attention against a naive float64 computation, and its exactness claims."""

import numpy as np
import pytest

from kdnb.reference import verify_attention as module
from kdnb.reference.verify_attention import verify_attention


def naive(query, cache_rows, prefix_len, visible, scale, kv_lora_rank):
    """One softmax per row and head, in float64, over the visible keys alone."""
    rows, heads, _ = query.shape
    out = np.zeros((rows, heads, kv_lora_rank))
    for i in range(rows):
        seen = [*range(prefix_len), *(prefix_len + j for j in range(rows) if visible[i, j])]
        keys = cache_rows[seen].astype(np.float64)
        for h in range(heads):
            scores = keys @ query[i, h].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ keys[:, :kv_lora_rank] / weights.sum()
    return out


def random_tree_mask(rng, rows):
    visible = np.eye(rows, dtype=bool)
    for node in range(1, rows):
        visible[node] |= visible[rng.integers(0, node)]
    return visible


def case(rows, heads=3, prefix_len=5, kv_lora_rank=12, rope_dim=4, seed=0):
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((rows, heads, kv_lora_rank + rope_dim)).astype(np.float32)
    cache = rng.standard_normal((prefix_len + rows, kv_lora_rank + rope_dim)).astype(np.float32)
    return query, cache, random_tree_mask(rng, rows)


@pytest.mark.parametrize("rows", [1, 2, 7, 65, 130])
@pytest.mark.parametrize("prefix_len", [0, 1, 70])
@pytest.mark.parametrize("by_row", [False, True])
def test_against_naive(rows, prefix_len, by_row):
    query, cache, visible = case(rows, prefix_len=prefix_len, seed=rows)
    for mask in (visible, None):
        ours = verify_attention(query, cache, prefix_len, mask, 0.3, 12, by_row=by_row)
        full = np.tri(rows, dtype=bool) if mask is None else mask
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, naive(query, cache, prefix_len, full, 0.3, 12), atol=2e-6, rtol=0)


def test_explicit_causal_mask_gives_the_same_bits_as_none(monkeypatch):
    for tile_bytes in (1 << 24, 4096):
        monkeypatch.setattr(module, "TILE_BYTES", tile_bytes)
        for rows in (1, 3, 64, 100):
            query, cache, _ = case(rows, seed=rows)
            chain = verify_attention(query, cache, 5, np.tri(rows, dtype=bool), 0.3, 12)
            np.testing.assert_array_equal(chain, verify_attention(query, cache, 5, None, 0.3, 12))


def test_by_row_equals_running_each_path_alone_bit_for_bit():
    query, cache, visible = case(40, seed=3)
    tree = verify_attention(query, cache, 5, visible, 0.3, 12, by_row=True)
    for node in range(40):
        path = np.flatnonzero(visible[node])
        rows = np.concatenate([np.arange(5), 5 + path])
        alone = verify_attention(query[path], cache[rows], 5, None, 0.3, 12, by_row=True)
        np.testing.assert_array_equal(tree[node], alone[-1])


def test_wide_prefill_holds_no_more_than_its_tile(monkeypatch):
    """Peak memory of 2,048 rows stays far below the full score tensor of rows x heads x rows."""
    import tracemalloc

    rows, heads = 2048, 4
    query, cache, _ = case(rows, heads=heads, prefix_len=0)
    full_bytes = rows * heads * rows * 4
    monkeypatch.setattr(module, "TILE_BYTES", 1 << 20)
    tracemalloc.start()
    verify_attention(query, cache, 0, None, 0.3, 12)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert full_bytes == 67_108_864
    assert peak < full_bytes / 8, f"peak {peak} bytes"


def test_hidden_rows_do_not_matter():
    query, cache, visible = case(20, seed=5)
    before = verify_attention(query, cache, 5, visible, 0.3, 12)
    node = 7
    changed = cache.copy()
    changed[5 + np.flatnonzero(~visible[node])] = 1e3
    after = verify_attention(query, changed, 5, visible, 0.3, 12)
    np.testing.assert_array_equal(before[node], after[node])

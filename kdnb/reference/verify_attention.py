"""Tree-verify attention: MLA in absorbed form under a visibility mask."""

import numpy as np

from kdnb.arrays import Bool, Floats

TILE_BYTES = 1 << 24  # of scores held at once: wide prefill never builds [rows, heads, rows] whole


def verify_attention(
    query: Floats,
    cache_rows: Floats,
    prefix_len: int,
    visible: Bool | None,
    softmax_scale: float,
    kv_lora_rank: int,
    *,
    by_row: bool = False,
) -> Floats:
    """Attend to the committed prefix and to the visible rows of the append window.

    Args:
        query: [rows, heads, kv_lora_rank + qk_rope_head_dim], from `mla_query`.
        cache_rows: [prefix_len + rows, kv_lora_rank + qk_rope_head_dim]; the keys, and in their first
            kv_lora_rank columns the values.
        prefix_len: Committed rows: every query sees all of them.
        visible: bool [rows, rows]; row i sees window row j. None is causal: j <= i.
        softmax_scale: Factor on the scores.
        kv_lora_rank: Columns of a cache row that are values.
        by_row: See kdnb.reference; each query then reads its visible rows gathered in order, as if
            nothing else had ever been in the window.

    Returns:
        [rows, heads, kv_lora_rank].
    Exact: an explicit causal mask gives the same bits as None.
    Cost: 2 * rows * heads * (2 * kv_lora_rank + qk_rope_head_dim) FLOP per key.
    """
    rows, heads, width = query.shape
    out = np.empty((rows, heads, kv_lora_rank), dtype=query.dtype)
    if by_row:
        for row in range(rows):
            seen = np.arange(row + 1) if visible is None else np.flatnonzero(visible[row])
            if seen[-1] + 1 == len(seen):
                keys = cache_rows[: prefix_len + len(seen)]
            else:
                keys = np.concatenate([cache_rows[:prefix_len], cache_rows[prefix_len + seen]])
            out[row] = _attend(query[row], keys, None, softmax_scale, kv_lora_rank)
        return out
    tile = max(1, TILE_BYTES // (heads * (prefix_len + rows) * query.itemsize))
    for start in range(0, rows, tile):
        stop = min(start + tile, rows)
        if visible is None:
            mask = np.tri(stop - start, stop, k=start, dtype=np.bool_)
        else:
            mask = visible[start:stop]
            mask = mask[:, : int(np.flatnonzero(mask.any(axis=0))[-1]) + 1]
        keys = cache_rows[: prefix_len + mask.shape[1]]
        hidden = None
        if rows > 1 and not mask.all():
            hidden = np.zeros((stop - start, 1, len(keys)), dtype=query.dtype)
            hidden[:, 0, prefix_len:][~mask] = -np.inf
        flat = query[start:stop].reshape(-1, width)
        context = _attend(flat, keys, hidden, softmax_scale, kv_lora_rank)
        out[start:stop] = context.reshape(stop - start, heads, kv_lora_rank)
    return out


def _attend(
    query: Floats, keys: Floats, hidden: Floats | None, softmax_scale: float, kv_lora_rank: int
) -> Floats:
    """Softmax attention of [queries, width] over [keys, width]; `hidden` is added to the scores."""
    scores: Floats = query @ keys.T
    scores *= query.dtype.type(softmax_scale)
    if hidden is not None:
        by_tile = scores.reshape(hidden.shape[0], -1, scores.shape[1])
        by_tile += hidden
    scores -= np.maximum.reduce(scores, axis=1, keepdims=True)
    np.exp(scores, out=scores)
    context: Floats = scores @ keys[:, :kv_lora_rank]
    context /= np.add.reduce(scores, axis=1, keepdims=True)
    return context

"""Attention of the draft block: grouped queries, not causal."""

import numpy as np

from kdnb.arrays import Bool, Floats


def draft_attention(
    query: Floats, keys: Floats, values: Floats, softmax_scale: float, visible: Bool | None
) -> Floats:
    """Attend from the block to the context and to the whole block.

    Args:
        query: [rows, heads, head_dim].
        keys: [keys, kv_heads, head_dim]; kv_heads divides heads, and head h reads kv head
            h // (heads / kv_heads).
        values: [keys, kv_heads, head_dim].
        softmax_scale: Factor on the scores.
        visible: bool [rows, keys] or None for all visible.

    Returns:
        [rows, heads * head_dim].
    """
    rows, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    by_group = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    grouped = by_group.transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)
    scores: Floats = grouped @ keys.transpose(1, 2, 0)
    scores *= query.dtype.type(softmax_scale)
    if visible is not None:
        by_row = scores.reshape(kv_heads, rows, -1, scores.shape[2])
        by_row[:, ~visible[:, None, :].repeat(by_row.shape[2], axis=1)] = -np.inf
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    context = scores @ values.transpose(1, 0, 2)
    context = context.reshape(kv_heads, rows, -1, head_dim).transpose(1, 0, 2, 3)
    return context.reshape(rows, heads * head_dim)

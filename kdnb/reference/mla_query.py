"""The absorbed query of multi-head latent attention."""

import numpy as np

from kdnb.arrays import Floats
from kdnb.reference.rope import RopeRows, rotate_half, rotate_interleaved


def mla_query(q: Floats, w_uk: Floats, rope: RopeRows, *, interleaved: bool, by_row: bool = False) -> Floats:
    """Fold the key up-projection into the query and rotate its rope part.

    Args:
        q: [rows, heads * (qk_nope_head_dim + qk_rope_head_dim)], per head nope first.
        w_uk: [heads, qk_nope_head_dim, kv_lora_rank], the key half of kv_b_proj.
        rope: Cosines and sines of the rows.
        interleaved: The checkpoint's `rope_interleave`.
        by_row: See kdnb.reference.

    Returns:
        [rows, heads, kv_lora_rank + qk_rope_head_dim]; its dot product with a cache row is the score.
    Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1, the absorbed form.
    """
    heads, nope, kv_lora_rank = w_uk.shape
    rows = q.shape[0]
    q = q.reshape(rows, heads, -1)
    rotate = rotate_interleaved if interleaved else rotate_half
    out = np.empty((rows, heads, kv_lora_rank + q.shape[2] - nope), dtype=q.dtype)
    if by_row:
        out[..., :kv_lora_rank] = (q[:, :, None, :nope] @ w_uk)[:, :, 0]
    else:
        out[..., :kv_lora_rank] = (q[..., :nope].transpose(1, 0, 2) @ w_uk).transpose(1, 0, 2)
    out[..., kv_lora_rank:] = rotate(q[..., nope:], rope)
    return out

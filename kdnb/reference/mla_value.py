"""From attention over latents back to the heads' values."""

from kdnb.arrays import Floats


def mla_value(context: Floats, w_uv: Floats, *, by_row: bool = False) -> Floats:
    """Apply the value up-projection to every head's attended latent.

    Args:
        context: [rows, heads, kv_lora_rank].
        w_uv: [heads, v_head_dim, kv_lora_rank], the value half of kv_b_proj.
        by_row: See kdnb.reference.

    Returns:
        [rows, heads * v_head_dim], the input of o_proj.
    Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1, the absorbed form.
    """
    up = w_uv.transpose(0, 2, 1)
    if by_row:
        values = (context[:, :, None, :] @ up)[:, :, 0]
    else:
        values = (context.transpose(1, 0, 2) @ up).transpose(1, 0, 2)
    return values.reshape(context.shape[0], -1)

"""Writing the latent cache."""

from kdnb.arrays import Floats
from kdnb.reference.rms_norm import rms_norm
from kdnb.reference.rope import RopeRows, rotate_half, rotate_interleaved


def append_latent(
    cache_rows: Floats,
    kv_a: Floats,
    norm_weight: Floats,
    eps: float,
    rope: RopeRows,
    *,
    interleaved: bool,
) -> None:
    """Write one cache row per token, in place: the normed latent, then the rotated rope key.

    Args:
        cache_rows: [rows, kv_lora_rank + qk_rope_head_dim], the append window of one layer; written.
        kv_a: [rows, kv_lora_rank + qk_rope_head_dim], the output of kv_a_proj_with_mqa.
        norm_weight: [kv_lora_rank], kv_a_layernorm. The rope key is not normed.
        eps: Epsilon of that norm.
        rope: Cosines and sines of the rows.
        interleaved: The checkpoint's `rope_interleave`.
    """
    kv_lora_rank = norm_weight.shape[0]
    rotate = rotate_interleaved if interleaved else rotate_half
    cache_rows[:, :kv_lora_rank] = rms_norm(kv_a[:, :kv_lora_rank], norm_weight, eps)
    cache_rows[:, kv_lora_rank:] = rotate(kv_a[:, None, kv_lora_rank:], rope)[:, 0]

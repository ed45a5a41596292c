"""Queries and keys of the draft block: per-head norm, then rotation."""

from kdnb.arrays import Floats
from kdnb.reference.rms_norm import rms_norm
from kdnb.reference.rope import RopeRows, rotate_half


def head_norm_rope(x: Floats, weight: Floats, eps: float, rope: RopeRows) -> Floats:
    """Norm every head, then rotate it whole in half-split pairs.

    Args:
        x: [rows, heads * head_dim].
        weight: [head_dim], shared by the heads.
        eps: Epsilon of the norm.
        rope: Cosines and sines of the rows, [rows, head_dim / 2].

    Returns:
        [rows, heads, head_dim].
    """
    return rotate_half(rms_norm(x.reshape(x.shape[0], -1, weight.shape[0]), weight, eps), rope)

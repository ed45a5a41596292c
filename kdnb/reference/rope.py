"""Rotary position embedding."""

from typing import NamedTuple

import numpy as np

from kdnb.arrays import Float32, Floats, HostArray


class RopeRows(NamedTuple):
    """Cosines and sines of some rows: each [rows, dim / 2]."""

    cos: Floats
    sin: Floats


def rope_rows(
    inv_freq: Float32, positions: HostArray, attention_scaling: float, dtype: np.dtype[np.floating]
) -> RopeRows:
    """Return cos and sin of every row's angles.

    Args:
        inv_freq: float32 [dim / 2], radians per position.
        positions: int [rows], absolute positions.
        attention_scaling: Factor on cos and sin (YaRN's attention_factor).
        dtype: dtype of the result.

    Returns:
        RopeRows, each [rows, dim / 2].
    Source: the angle is a float32 product, as in the models' own code; so trained weights expect it.
    """
    angles = positions.astype(np.float32)[:, None] * inv_freq[None, :]
    angles = angles.astype(dtype, copy=False)
    scaling = dtype.type(attention_scaling)
    return RopeRows(np.cos(angles) * scaling, np.sin(angles) * scaling)


def rotate_interleaved(x: Floats, rows: RopeRows) -> Floats:
    """Rotate the pairs (0, 1), (2, 3), ...; the result holds all first halves, then all second ones.

    Args:
        x: [rows, heads, dim].
        rows: Cosines and sines of the rows.

    Returns:
        [rows, heads, dim] in de-interleaved order: dot products of two such rows are unchanged by it.
    """
    return _rotate(x[..., 0::2], x[..., 1::2], rows)


def rotate_half(x: Floats, rows: RopeRows) -> Floats:
    """Rotate the pairs (i, i + dim / 2); shapes as in `rotate_interleaved`."""
    half = x.shape[-1] // 2
    return _rotate(x[..., :half], x[..., half:], rows)


def _rotate(first: Floats, second: Floats, rows: RopeRows) -> Floats:
    cos, sin = rows.cos[:, None, :], rows.sin[:, None, :]
    half = first.shape[-1]
    out = np.empty((*first.shape[:-1], 2 * half), dtype=first.dtype)
    out[..., :half] = first * cos - second * sin
    out[..., half:] = second * cos + first * sin
    return out

"""Root-mean-square normalisation."""

import numpy as np

from kdnb.arrays import Floats


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale each row to unit root mean square, then by `weight`.

    Args:
        x: [..., size].
        weight: [size].
        eps: Added to the mean square.

    Returns:
        [..., size].
    Source: Zhang & Sennrich 2019 (arXiv:1910.07467), eq. 4.
    """
    scale = np.add.reduce(x * x, axis=-1, keepdims=True)
    scale /= x.shape[-1]
    scale += x.dtype.type(eps)
    normed: Floats = x / np.sqrt(scale, out=scale)
    normed *= weight
    return normed


def add_rms_norm(x: Floats, delta: Floats, weight: Floats, eps: float) -> tuple[Floats, Floats]:
    """Add a layer's output to the residual stream and normalise the sum for the next one.

    Args:
        x: [rows, hidden_size], the residual stream.
        delta: [rows, hidden_size], what the layer adds.
        weight: [hidden_size].
        eps: Added to the mean square.

    Returns:
        (x + delta, rms_norm(x + delta)).
    """
    total = x + delta
    return total, rms_norm(total, weight, eps)

"""Matrix product with a weight stored [out, in], as checkpoints store it."""

import numpy as np

from kdnb.arrays import Floats

FEW_ROWS = 64


def linear(x: Floats, weight: Floats, bias: Floats | None = None, *, by_row: bool = False) -> Floats:
    """Multiply rows by a weight matrix.

    Args:
        x: [rows, in].
        weight: [out, in].
        bias: [out] or None.
        by_row: Multiply each row alone, so that its result is that of a one-row call bit for bit.

    Returns:
        [rows, out].
    Error: one and many rows differ by BLAS's summation order, about 1e-6 relative in float32.
    """
    y: Floats
    if by_row:
        y = (x[:, None, :] @ weight.T)[:, 0]
    elif 1 < len(x) <= FEW_ROWS and not weight.flags.f_contiguous:
        y = np.ascontiguousarray((weight @ x.T).T)  # twice as fast in BLAS as x @ weight.T
    else:
        y = x @ weight.T
    if bias is not None:
        y += bias
    return y

"""Matrix product with a weight stored [out, in], as checkpoints store it."""

from kdnb.arrays import Floats


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
    y: Floats = (x[:, None, :] @ weight.T)[:, 0] if by_row else x @ weight.T
    if bias is not None:
        y += bias
    return y

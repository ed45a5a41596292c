"""The gated activation of every MLP and expert."""

import numpy as np

from kdnb.arrays import Floats


def swiglu(gate: Floats, up: Floats) -> Floats:
    """Return silu(gate) * up, with silu(x) = x / (1 + exp(-x)).

    Args:
        gate: [rows, intermediate].
        up: [rows, intermediate].

    Returns:
        [rows, intermediate].
    Source: Shazeer 2020 (arXiv:2002.05202).
    """
    with np.errstate(over="ignore"):  # exp(-x) may reach inf, then silu is 0: the right limit
        gated: Floats = gate / (1 + np.exp(-gate))
    gated *= up
    return gated

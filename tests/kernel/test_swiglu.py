"""SwiGLU against float64, and its limits."""

import numpy as np

from kdnb.reference.swiglu import swiglu


def test_against_float64():
    gate, up = np.random.default_rng(0).standard_normal((2, 4, 9)).astype(np.float32) * 4
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(swiglu(gate, up), wide / (1 + np.exp(-wide)) * up, atol=5e-6)


def test_far_values_take_their_limits_without_a_warning():
    gate = np.array([[-1e4, -200.0, 0.0, 200.0]], dtype=np.float32)
    up = np.full_like(gate, 2.0)
    assert swiglu(gate, up).tolist() == [[0.0, 0.0, 0.0, 400.0]]

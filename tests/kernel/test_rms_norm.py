"""RMSNorm against float64, and the fused residual form."""

import numpy as np

from kdnb.reference.rms_norm import add_rms_norm, rms_norm


def test_against_float64():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 96)).astype(np.float32)
    weight = rng.standard_normal(96).astype(np.float32)
    wide = x.astype(np.float64)
    expected = weight * wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5)
    ours = rms_norm(x, weight, 1e-5)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, expected, atol=1e-6, rtol=0)


def test_eps_decides_small_rows():
    x = np.full((1, 4), 1e-3, dtype=np.float32)
    one = np.ones(4, dtype=np.float32)
    np.testing.assert_allclose(rms_norm(x, one, 1e-6), 1e-3 / np.sqrt(2e-6), rtol=1e-6)
    np.testing.assert_allclose(rms_norm(x, one, 1e-5), 1e-3 / np.sqrt(1.1e-5), rtol=1e-6)


def test_fused_residual_is_the_sum_and_its_norm():
    rng = np.random.default_rng(1)
    x, delta = rng.standard_normal((2, 3, 8)).astype(np.float32)
    weight = rng.standard_normal(8).astype(np.float32)
    total, normed = add_rms_norm(x, delta, weight, 1e-6)
    np.testing.assert_array_equal(total, x + delta)
    np.testing.assert_array_equal(normed, rms_norm(x + delta, weight, 1e-6))

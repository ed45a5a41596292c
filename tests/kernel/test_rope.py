"""Rotary embedding against complex multiplication in float64."""

import numpy as np

from kdnb.reference.rope import rope_rows, rotate_half, rotate_interleaved

INV_FREQ = (10000.0 ** -(np.arange(0, 8, 2) / 8)).astype(np.float32)


def rows(positions, scaling=1.0):
    return rope_rows(INV_FREQ, np.array(positions), scaling, np.dtype(np.float32))


def rotated(first, second, positions):
    turn = np.exp(1j * np.array(positions)[:, None] * INV_FREQ[None].astype(np.float64))
    z = (first + 1j * second) * turn[:, None, :]
    return np.concatenate([z.real, z.imag], axis=-1)


def test_both_pairings_against_complex_rotation():
    x = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)
    positions = [0, 5, 900]
    np.testing.assert_allclose(
        rotate_interleaved(x, rows(positions)),
        rotated(x[..., 0::2], x[..., 1::2], positions),
        atol=1e-4,
    )
    np.testing.assert_allclose(
        rotate_half(x, rows(positions)), rotated(x[..., :4], x[..., 4:], positions), atol=1e-4
    )


def test_position_zero_only_reorders():
    x = np.arange(8, dtype=np.float32)[None, None]
    assert rotate_half(x, rows([0])).tolist() == x.tolist()
    assert rotate_interleaved(x, rows([0]))[0, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_dot_products_depend_on_the_distance_only():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)
    for rotate in (rotate_half, rotate_interleaved):
        dots = [
            float((rotate(q, rows([p + 3]))[0, 0] * rotate(k, rows([p]))[0, 0]).sum()) for p in (0, 7, 100)
        ]
        np.testing.assert_allclose(dots, dots[0], atol=1e-5)


def test_scaling_multiplies_cos_and_sin():
    plain, scaled = rows([4]), rows([4], scaling=1.5)
    np.testing.assert_allclose(scaled.cos, plain.cos * 1.5, rtol=1e-6)
    np.testing.assert_allclose(scaled.sin, plain.sin * 1.5, rtol=1e-6)

"""The matrix product, and that by_row gives a one-row call's bits."""

import numpy as np

from kdnb.reference.linear import linear


def test_against_float64_with_bias():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 70)).astype(np.float32)
    weight = rng.standard_normal((33, 70)).astype(np.float32)
    bias = rng.standard_normal(33).astype(np.float32)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    for laid_out in (weight, np.asfortranarray(weight)):
        for by_row in (False, True):
            for rows in (x, np.tile(x, (20, 1))):  # few rows and many go different ways through BLAS
                ours = linear(rows, laid_out, bias, by_row=by_row)
                assert ours.flags.c_contiguous
                np.testing.assert_allclose(ours[:9], expected, atol=2e-5)


def test_by_row_does_not_depend_on_the_other_rows():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((65, 192)).astype(np.float32)
    plain = rng.standard_normal((128, 192)).astype(np.float32)
    for weight in (plain, np.asfortranarray(plain)):
        together = linear(x, weight, by_row=True)
        for row in range(65):
            np.testing.assert_array_equal(together[row], linear(x[row : row + 1], weight)[0])
            alone = linear(x[row : row + 1], weight, by_row=True)[0]
            np.testing.assert_array_equal(together[row], alone)


def test_the_input_is_not_changed():
    x = np.ones((2, 3), dtype=np.float32)
    linear(x, np.ones((4, 3), dtype=np.float32), np.ones(4, dtype=np.float32))
    assert (x == 1).all()

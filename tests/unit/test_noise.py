"""Noise: keyed by seed, position and token; open interval; refusals."""

import numpy as np
import pytest

from kdnb.errors import ConfigError
from kdnb.noise import TARGET_STREAM, Noise


def test_uniform_is_numpys_philox_with_this_key_and_counter():
    bits = np.random.Philox(key=[7, 2], counter=[0, 0, 0, 13])
    np.testing.assert_array_equal(
        Noise(7, prefix_len=9).uniform(3, 2, 50), np.random.Generator(bits).random(50)
    )
    plain = np.random.Generator(np.random.Philox(key=7, counter=[0, 0, 0, 13])).random(50)
    np.testing.assert_array_equal(Noise(7, prefix_len=9).uniform(3, TARGET_STREAM, 50), plain)


def test_gumbel_is_minus_log_minus_log_of_the_targets_stream():
    u = Noise(7, prefix_len=9).uniform(3, TARGET_STREAM, 50)
    gumbel = Noise(7, prefix_len=9).gumbel(3, 50)
    assert gumbel.dtype == np.float32
    np.testing.assert_array_equal(gumbel, (-np.log(-np.log(u))).astype(np.float32))


@pytest.mark.parametrize("value", [0.0, 1 - 2.0**-53])
def test_the_interval_is_open(monkeypatch, value):
    """The generator's smallest and largest doubles give finite noise."""

    class Extreme:
        def random(self, count):
            return np.full(count, value)

    monkeypatch.setattr(Noise, "_generator", lambda self, depth, stream: Extreme())
    u = Noise(0).uniform(0, 0, 3)
    assert (u > 0).all()
    assert (u < 1).all()
    assert np.isfinite(Noise(0).gumbel(0, 3)).all()


def test_streams_positions_and_seeds_are_independent():
    streams = [
        Noise(seed, prefix_len).uniform(depth, stream, 4000)
        for seed, prefix_len, depth, stream in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1))
    ]
    correlations = np.corrcoef(streams)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(4000)
    np.testing.assert_array_equal(Noise(0, 1).uniform(0, 0, 9), Noise(0, 0).uniform(1, 0, 9))


def test_the_largest_seed_and_numpy_integers_work():
    assert np.isfinite(Noise(2**64 - 1, np.int32(5)).gumbel(np.int64(2), 3)).all()
    np.testing.assert_array_equal(Noise(np.int64(3)).gumbel(0, 5), Noise(3).gumbel(0, 5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Noise(-1), "seed is -1; use an integer from 0 to 18446744073709551615"),
        (lambda: Noise(2**64), "seed is 18446744073709551616"),
        (lambda: Noise(1.5), "seed is 1.5"),
        (lambda: Noise(True), "seed is True"),
        (lambda: Noise(0, prefix_len=-2), "prefix_len is -2"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ConfigError, match=message):
        make()

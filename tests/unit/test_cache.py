"""The latent cache: growth, commits, errors by message."""

import numpy as np
import pytest

import kdnb
from kdnb.errors import CapacityError, ConfigError, ShapeError


@pytest.fixture(scope="module")
def target():
    return kdnb.load_target("golden")


def test_forward_leaves_the_prefix_and_commit_advances_it(target):
    cache = target.new_cache()
    target.forward([1, 2, 3], cache)
    assert (cache.prefix_len, cache.window_len) == (0, 3)
    cache.commit([0, 2])
    assert (cache.prefix_len, cache.window_len) == (2, 0)


def test_growth_keeps_the_rows(target):
    small, large = target.new_cache(1), target.new_cache(64)
    for cache in (small, large):
        for token in (5, 6, 7):
            target.forward([token], cache)
            cache.commit()
    for layer in range(target.config.num_hidden_layers):
        np.testing.assert_array_equal(small.latent(layer), large.latent(layer))
        np.testing.assert_array_equal(small.rope_key(layer), large.rope_key(layer))
    assert small.capacity == 4


def test_a_fixed_cache_says_how_much_was_needed(target):
    cache = target.new_cache(4, grow=False)
    target.forward([1, 2, 3], cache)
    cache.commit()
    with pytest.raises(CapacityError, match=r"holds 4 rows but 6 are needed \(3 committed \+ 3 new\)"):
        target.forward([1, 2, 3], cache)
    assert cache.prefix_len == 3
    target.forward([4], cache)  # still usable


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 3], "rows go from 0 to 3 but the append window has rows 0 to 2"),
        ([-1], "from -1"),
        ([2, 1], "do not strictly ascend"),
        ([0, 0], "do not strictly ascend"),
        ([[0]], "2 axes"),
        ([0.5, 1.5], "rows has dtype float64"),
        ([True, False, True], "rows has dtype bool"),
    ],
)
def test_bad_commits_are_refused_and_change_nothing(target, rows, message):
    cache = target.new_cache()
    target.forward([1, 2, 3], cache)
    with pytest.raises(ShapeError, match=message):
        cache.commit(rows)
    assert (cache.prefix_len, cache.window_len) == (0, 3)
    cache.commit()
    assert cache.prefix_len == 3


def test_a_cache_of_another_model_is_refused(target, tmp_path):
    from tests.support.models import write_checkpoint

    other = kdnb.load_target(write_checkpoint(tmp_path / "other"))
    with pytest.raises(ConfigError, match=r"was not made for.*use target.new_cache"):
        target.forward([1], other.new_cache())


def test_capacity_must_be_positive(target):
    with pytest.raises(CapacityError, match="capacity is 0 rows"):
        target.new_cache(0)


def test_a_row_holds_kv_lora_rank_plus_qk_rope_head_dim_values(target):
    config = target.config
    assert target.new_cache(3).rows.shape == (
        config.num_hidden_layers,
        3,
        config.kv_lora_rank + config.qk_rope_head_dim,
    )

"""Compaction keeps exactly the rows of the path, in every layer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kdnb.reference.cache_compact import compact


@given(
    st.integers(0, 9),
    st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True).map(sorted),
)
def test_kept_rows_move_to_the_front_and_the_prefix_stays(prefix_len, kept):
    cache = np.arange(2 * 40 * 3, dtype=np.float32).reshape(2, 40, 3)
    before = cache.copy()
    compact(cache, prefix_len, np.array(kept))
    np.testing.assert_array_equal(cache[:, :prefix_len], before[:, :prefix_len])
    np.testing.assert_array_equal(
        cache[:, prefix_len : prefix_len + len(kept)],
        before[:, [prefix_len + row for row in kept]],
    )

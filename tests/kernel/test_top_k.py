"""Top-k by partition: order, ties, log-probs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.errors import ShapeError
from kdnb.reference.top_k import SORT_AT_MOST, top_k, top_k_log_probs


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.integers(0, 70))
def test_equals_a_stable_sort_with_ties(values, k):
    logits = np.array([values, values[::-1]], dtype=np.float32)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(top_k(logits, k), expected)


def test_large_vocabulary_equals_a_stable_sort():
    logits = np.round(np.random.default_rng(0).standard_normal((3, 50_000)) * 50).astype(np.float32)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :300]
    np.testing.assert_array_equal(top_k(logits, 300), expected)


def test_log_probs_are_over_the_full_vocabulary():
    logits = np.array([[1.0, 2.0, 3.0, -np.inf]], dtype=np.float32)
    ids, log_probs = top_k_log_probs(logits, 2)
    assert ids.tolist() == [[2, 1]]
    total = np.exp([1.0, 2.0, 3.0]).sum()
    np.testing.assert_allclose(np.exp(log_probs), np.exp([[3.0, 2.0]]) / total, rtol=1e-6)


def test_large_logits_do_not_overflow():
    _, log_probs = top_k_log_probs(np.array([[1e4, 1e4 - 1]], dtype=np.float32), 2)
    np.testing.assert_allclose(
        log_probs[0], np.log([1 / (1 + np.exp(-1)), np.exp(-1) / (1 + np.exp(-1))]), atol=1e-3
    )


def test_nan_is_refused():
    with pytest.raises(ShapeError, match="row 1 holds NaN"):
        top_k(np.array([[0.0, 1.0], [np.nan, 0.0]]), 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 2.0]), min_size=1, max_size=40), st.integers(0, 45))
def test_sorting_and_partitioning_agree(values, k):
    """A small vocabulary is sorted, a large one partitioned: same ids, ties at the cut included."""
    logits = np.array([values], dtype=np.float32)
    padded = np.full((1, SORT_AT_MOST + len(values)), -np.inf, dtype=np.float32)
    padded[:, : len(values)] = logits
    count = min(k, len(values))
    np.testing.assert_array_equal(top_k(padded, count), top_k(logits, count))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "row 1 holds NaN"),
        (np.inf, "row 1 holds plus infinity"),
        (-np.inf, "row 1 holds minus infinity"),
    ],
)
@pytest.mark.parametrize("vocab_size", [3, SORT_AT_MOST + 1])
def test_log_probs_of_a_broken_row_are_refused(value, message, vocab_size):
    logits = np.zeros((2, vocab_size), dtype=np.float32)
    logits[1] = value
    with pytest.raises(ShapeError, match=message):
        top_k_log_probs(logits, 2)


def test_a_negative_count_is_refused():
    with pytest.raises(ShapeError, match="k is -1"):
        top_k(np.zeros((1, 3)), -1)

"""Draft: ranking, log-probs, backends, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.backends import get_backend
from kdnb.draft import Draft
from kdnb.errors import DrafterError
from kdnb.reference.top_k import log_sum_exp

LOGITS = np.array([[1.0, 3.0, 3.0, 0.0], [2.0, -np.inf, 2.0, 5.0]], dtype=np.float32)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(0, 12))
def test_top_k_agrees_with_the_full_log_probs(seed, k):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((3, 9)) * 2).astype(np.float32)
    draft = Draft(5, logits)
    ids, log_probs = draft.top_k(k)
    assert ids.dtype == np.int32
    assert log_probs.dtype == draft.log_probs.dtype == np.float32
    assert ids.shape == log_probs.shape == (3, min(k, 9))
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1, kind="stable")[:, :k])
    np.testing.assert_array_equal(log_probs, np.take_along_axis(draft.log_probs, ids, axis=1))


def test_log_probs_are_the_rounded_log_softmax():
    wide = LOGITS.astype(np.float64)
    with np.errstate(divide="ignore"):
        expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(Draft(0, LOGITS).log_probs, expected, rtol=2e-7)
    assert log_sum_exp(np.full((1, 2), -1e30, dtype=np.float32))[0, 0] == pytest.approx(-1e30)


def test_a_backends_draft_equals_a_numpy_draft():
    backend = get_backend("numpy")
    ours, theirs = Draft(1, LOGITS), Draft(1, backend.upload(LOGITS), backend)
    for k in (0, 1, 4, 9):
        for want, got in zip(ours.top_k(k), theirs.top_k(k), strict=True):
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(theirs.log_probs, ours.log_probs)
    assert (theirs.max_depth, theirs.vocab_size) == (2, 4)
    assert repr(theirs) == "Draft(max_depth=2, vocab_size=4)"


def test_a_backends_nan_is_found_when_it_is_asked_for():
    backend = get_backend("numpy")
    logits = LOGITS.copy()
    logits[1, 0] = np.nan
    draft = Draft(1, backend.upload(logits), backend)
    for ask in (lambda: draft.top_k(2), lambda: draft.log_probs):
        with pytest.raises(DrafterError, match="hold"):
            ask()


def test_log_probs_are_used_as_they_are():
    log_probs = [[-0.25, -0.5, -0.25]]  # sums to more than 1: nobody's business
    draft = Draft.from_log_probs(3, log_probs)
    assert draft.log_probs.tolist() == log_probs
    ids, best = draft.top_k(2)
    assert ids.tolist() == [[0, 2]]
    assert best.tolist() == [[-0.25, -0.25]]


def test_rounding_above_zero_is_cut():
    """A child that outscored its parent would break the order of a tree."""
    draft = Draft.from_log_probs(0, np.array([[1e-6, -9.0]], dtype=np.float32))
    assert draft.log_probs.tolist() == [[0.0, -9.0]]


def test_no_depth_is_a_draft_too():
    draft = Draft(0, np.zeros((0, 7), dtype=np.float32))
    ids, log_probs = draft.top_k(3)
    assert ids.shape == log_probs.shape == (0, 3)
    assert draft.log_probs.shape == (0, 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Draft(0, np.zeros(4)), r"shape \[4\]; they must be \[max_depth, vocab_size\]"),
        (lambda: Draft(0, np.zeros((3, 0))), r"shape \[3, 0\]"),
        (lambda: Draft(0, [[0.0, 1.0], [np.nan, 1.0]]), "depth 2 hold NaN"),
        (lambda: Draft(0, [[0.0, np.inf]]), "depth 1 hold plus infinity"),
        (lambda: Draft(0, [[-np.inf, -np.inf]]), "depth 1 hold minus infinity only"),
        (lambda: Draft.from_log_probs(0, [[-1.0, np.nan]]), "hold NaN"),
        (
            lambda: Draft.from_log_probs(0, [[-1.0, -2.0], [-1.0, 4.5]]),
            r"log_probs\[1, 1\] is 4.5, but a log-prob is at most 0; use Draft\(root_id, logits\)",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(DrafterError, match=message):
        make()

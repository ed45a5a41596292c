"""Routing rules by hand-made cases with known answers."""

import numpy as np
import pytest

from kdnb.reference.router import RouterSpec, route

V3 = RouterSpec("sigmoid", "noaux_tc", 2, 1, 1, True, 2.5)


def logits_of(*rows):
    return np.array(rows, dtype=np.float32)


def run(rows, spec, bias=None):
    x = logits_of(*rows)
    bias = None if bias is None else np.array(bias, dtype=np.float32)
    return route(x, bias, spec)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, dtype=np.float64)))


def test_v3_weights_are_normalised_and_scaled():
    routing = run([[0.0, 2.0, 1.0, -1.0]], V3)
    assert routing.topk_index.tolist() == [[1, 2]]
    expected = sigmoid([2, 1]) / sigmoid([2, 1]).sum() * 2.5
    np.testing.assert_allclose(routing.topk_weight[0], expected, rtol=1e-6)
    assert routing.topk_weight.sum() == pytest.approx(2.5)


def test_scaling_stays_without_normalisation():
    routing = run([[0.0, 2.0, 1.0, -1.0]], V3._replace(norm_topk_prob=False))
    np.testing.assert_allclose(routing.topk_weight[0], sigmoid([2, 1]) * 2.5, rtol=1e-6)


def test_bias_moves_the_choice_but_not_the_weights():
    routing = run([[0.0, 2.0, 1.0, -1.0]], V3._replace(norm_topk_prob=False), [0, 0, 0, 9])
    assert routing.topk_index.tolist() == [[3, 1]]
    np.testing.assert_allclose(routing.topk_weight[0], sigmoid([-1, 2]) * 2.5, rtol=1e-6)


def test_ties_go_to_the_lower_expert():
    assert run([[1.0, 1.0, 1.0, 1.0]], V3).topk_index.tolist() == [[0, 1]]
    assert run([[0.0, 3.0, 0.0, 3.0]], V3).topk_index.tolist() == [[1, 3]]


def test_v3_groups_score_by_their_two_best():
    # group 0 has the single best expert, group 1 the better pair
    spec = V3._replace(n_group=2, topk_group=1)
    assert run([[3.0, -9.0, 1.5, 1.5]], spec).topk_index.tolist() == [[2, 3]]
    # with a maximum, as V2 scores groups, group 0 would win
    v2 = RouterSpec("softmax", "group_limited_greedy", 2, 2, 1, False, 16.0)
    assert sorted(run([[3.0, -9.0, 1.5, 1.5]], v2).topk_index[0].tolist()) == [0, 1]


def test_v3_masks_other_groups_with_minus_infinity():
    # every biased score is negative: a mask of 0 would let the other group in
    spec = V3._replace(n_group=2, topk_group=1)
    routing = run([[1.0, 1.0, 0.0, 0.0]], spec, [-5, -5, -5, -5])
    assert routing.topk_index.tolist() == [[0, 1]]


def test_v2_softmax_greedy_is_not_normalised():
    spec = RouterSpec("softmax", "greedy", 2, 1, 1, False, 1.0)
    x = [0.0, 2.0, 1.0, -1.0]
    routing = run([x], spec)
    probs = np.exp(x) / np.exp(x).sum()
    assert routing.topk_index.tolist() == [[1, 2]]
    np.testing.assert_allclose(routing.topk_weight[0], probs[[1, 2]], rtol=1e-6)


def test_far_logits_give_zero_without_a_warning():
    routing = run([[-2e4, 0.0, -2e4, 1.0]], V3)
    assert routing.topk_index.tolist() == [[3, 1]]
    assert np.isfinite(routing.topk_weight).all()

"""Routed experts against one MLP per token and expert, in float64."""

import numpy as np
import pytest

from kdnb.reference.experts import experts


def setup(rows, num_experts=5, k=2, hidden=12, inner=7, seed=0):
    rng = np.random.default_rng(seed)
    weights = {
        "gate": rng.standard_normal((num_experts, inner, hidden)).astype(np.float32),
        "up": rng.standard_normal((num_experts, inner, hidden)).astype(np.float32),
        "down": rng.standard_normal((num_experts, hidden, inner)).astype(np.float32),
    }
    x = rng.standard_normal((rows, hidden)).astype(np.float32)
    index = np.array([rng.permutation(num_experts)[:k] for _ in range(rows)], dtype=np.int32)
    weight = rng.random((rows, k)).astype(np.float32)
    return x, index, weight, weights


def naive(x, index, weight, weights):
    out = np.zeros_like(x, dtype=np.float64)
    for row in range(len(x)):
        for expert, share in zip(index[row], weight[row], strict=True):
            token = x[row].astype(np.float64)
            gate = weights["gate"][expert] @ token
            hidden = gate / (1 + np.exp(-gate)) * (weights["up"][expert] @ token)
            out[row] += share * (weights["down"][expert] @ hidden)
    return out


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("by_row", [False, True])
def test_against_naive(rows, by_row):
    x, index, weight, weights = setup(rows, seed=rows)
    ours = experts(x, index, weight, lambda e, part: weights[part][e], by_row=by_row)
    np.testing.assert_allclose(ours, naive(x, index, weight, weights), atol=5e-5, rtol=1e-4)


def test_only_experts_in_use_are_fetched():
    x, _, weight, weights = setup(3)
    index = np.array([[4, 1], [1, 4], [4, 1]], dtype=np.int32)
    fetched = set()

    def fetch(expert, part):
        fetched.add(expert)
        return weights[part][expert]

    experts(x, index, weight, fetch)
    assert fetched == {1, 4}


def test_by_row_does_not_depend_on_the_other_rows():
    x, index, weight, weights = setup(20, hidden=48, inner=32)

    def fetch(expert, part):
        return weights[part][expert]

    together = experts(x, index, weight, fetch, by_row=True)
    for row in range(20):
        one = slice(row, row + 1)
        alone = experts(x[one], index[one], weight[one], fetch, by_row=True)
        np.testing.assert_array_equal(together[one], alone)

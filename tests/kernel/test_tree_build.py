"""The op behind the tree policies: order, ties, spine, limits."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.reference.tree_build import tree_build


def build(log_probs, budget, **options):
    """Build from rows that are sorted already, so that token id = rank."""
    rows = np.array(log_probs, dtype=np.float32)
    return tree_build(
        np.tile(np.arange(rows.shape[1]), (len(rows), 1)).astype(np.int32), rows, budget, 9, **options
    )


def ranks_of(tree):
    return [tuple(int(tree.token_ids[n]) for n in tree.path(node)[1:]) for node in range(1, tree.num_nodes)]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=3), st.integers(0, 45)
)
def test_nodes_are_the_first_of_the_total_order(steps, budget):
    rows = -np.cumsum(np.array(steps), axis=1)  # descending, with ties
    nodes = [
        (-float(sum(rows[level, rank] for level, rank in enumerate(ranks))), ranks)
        for depth in range(1, len(rows) + 1)
        for ranks in product(range(3), repeat=depth)
    ]
    tree = build(rows, budget)
    assert ranks_of(tree) == [ranks for _, ranks in sorted(nodes)[:budget]]
    assert tree.token_ids[0] == 9


def test_scores_are_float64_sums_of_float32_log_probs():
    rows = np.log(np.array([[0.7, 0.3], [0.6, 0.4]])).astype(np.float32)
    tree = build(rows, 6)
    for node in range(1, tree.num_nodes):
        total = 0.0
        for level, n in enumerate(tree.path(node)[1:]):
            total += float(rows[level, tree.token_ids[n]])
        assert tree.scores[node] == total
    assert tree.scores.dtype == np.float64


@pytest.mark.parametrize(("budget", "depth"), [(0, 0), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_the_spine_goes_as_deep_as_the_budget(budget, depth):
    tree = build(np.zeros((4, 5)), budget, spine=4)
    assert tree.max_depth == depth
    assert tree.num_nodes == budget + 1


def test_a_thousand_nodes_of_a_flat_draft():
    tree = build(np.zeros((7, 1024)), 1024)
    assert tree.num_nodes == 1025
    # equal scores everywhere: the order is that of the rank tuples, depth first along rank 0
    assert ranks_of(tree)[:8] == [(0,) * d for d in range(1, 8)] + [(0,) * 6 + (1,)]


def test_no_depth_no_tree():
    assert tree_build(np.zeros((0, 4), np.int32), np.zeros((0, 4), np.float32), 5, 1).num_nodes == 1

"""Tree policies against brute force, ties included, and what they refuse."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdnb
from kdnb.draft import Draft
from kdnb.errors import ConfigError, DrafterError
from kdnb.policies import BUILT_IN, DDTree, EagleRerank, Sampled, Static, Threshold, resolve


def brute_force(log_probs, budget):
    """Sort every prefix by (-score, rank tuple): the contract, word for word."""
    depth, vocab = log_probs.shape
    order = np.argsort(-log_probs, axis=1, kind="stable")
    nodes = []
    for length in range(1, depth + 1):
        for ranks in product(range(vocab), repeat=length):
            score = 0.0
            for level, rank in enumerate(ranks):
                score += float(log_probs[level, order[level, rank]])
            nodes.append((-score, ranks))
    nodes.sort()
    return [(ranks, -s) for s, ranks in nodes[:budget]], order


def ranks_of(tree):
    """The rank tuple of every node but the root."""
    return [tuple(int(tree.ranks[n]) for n in tree.path(node)[1:]) for node in range(1, tree.num_nodes)]


@st.composite
def grids(draw):
    """Log-probs on an integer grid: many exact ties, of tokens and of scores."""
    depth, vocab = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    cells = draw(st.lists(st.integers(0, 3), min_size=depth * vocab, max_size=depth * vocab))
    return -np.array(cells, dtype=np.float32).reshape(depth, vocab) / 4


@settings(max_examples=200, deadline=None)
@given(grids(), st.integers(0, 60))
def test_ddtree_equals_brute_force_with_ties(log_probs, budget):
    tree = kdnb.build_tree(log_probs, budget)
    expected, order = brute_force(log_probs, budget)
    assert ranks_of(tree) == [ranks for ranks, _ in expected]
    assert tree.scores[1:].tolist() == [score for _, score in expected]
    assert tree.token_ids[1:].tolist() == [int(order[len(r) - 1, r[-1]]) for r, _ in expected]


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 60))
def test_ddtree_equals_the_frontier_form(log_probs, budget):
    """The form that suits a GPU: per depth the best of (frontier x top-k), then the best of the union."""
    order = np.argsort(-log_probs, axis=1, kind="stable")
    values = np.take_along_axis(log_probs, order, axis=1)[:, : max(budget, 1)].astype(np.float64)
    frontier, union = [(0.0, ())], []
    for row in values:
        frontier = sorted(
            (negative - value, (*ranks, rank))
            for negative, ranks in frontier
            for rank, value in enumerate(row)
        )[:budget]
        union += frontier
    assert ranks_of(kdnb.build_tree(log_probs, budget)) == [ranks for _, ranks in sorted(union)[:budget]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 70))
def test_ddtree_maximises_the_expected_acceptance(seed, budget):
    rng = np.random.default_rng(seed)
    log_probs = np.log(rng.dirichlet(np.ones(4), size=3)).astype(np.float32)
    expected = np.exp([score for _, score in brute_force(log_probs, budget)[0]]).sum()
    sums = {name: float(np.exp(policy(Draft.from_log_probs(5, log_probs), budget).scores[1:]).sum())
            for name, policy in BUILT_IN.items()}  # fmt: skip
    assert sums["ddtree"] == pytest.approx(expected)
    assert max(sums.values()) <= expected + 1e-6


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(0, 40))
def test_every_policy_keeps_its_contract(name, seed, budget):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((5, 9)).astype(np.float32)
    tree = BUILT_IN[name](Draft(3, logits), budget)
    assert tree.token_ids[0] == 3
    assert tree.num_nodes <= budget + 1
    assert tree.max_depth <= 5
    log_probs = Draft(3, logits).log_probs
    for node in range(1, tree.num_nodes):
        own = log_probs[tree.depths[node] - 1, tree.token_ids[node]]
        assert tree.draft_log_probs[node] == pytest.approx(own, abs=1e-6)
        assert tree.scores[node] == pytest.approx(tree.scores[tree.parents[node]] + own, abs=1e-5)
    if budget == 0:
        assert tree.num_nodes == 1


def test_chain_is_the_best_token_of_each_depth():
    logits = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    tree = BUILT_IN["chain"](Draft(3, logits), 4)
    assert tree.token_ids.tolist() == [3, *logits.argmax(axis=1)[:4].tolist()]
    assert tree.is_chain


def test_the_spine_is_kept_and_the_order_stays():
    logits = np.zeros((4, 6), dtype=np.float32)  # a flat draft: best-first would stay shallow
    flat = DDTree()(Draft(0, logits), 6)
    spine = DDTree(spine=True)(Draft(0, logits), 6)
    assert flat.max_depth == 1
    assert spine.max_depth == 4
    assert {(0,) * depth for depth in range(1, 5)} <= set(ranks_of(spine))
    keys = list(zip((-spine.scores[1:]).tolist(), ranks_of(spine), strict=True))
    assert keys == sorted(keys)
    assert DDTree(spine=True)(Draft(0, logits), 3).max_depth == 3


def test_threshold_keeps_exactly_what_is_probable_enough():
    log_probs = np.log([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]]).astype(np.float32)
    tree = Threshold(0.18)(Draft.from_log_probs(0, log_probs), 64)
    np.testing.assert_allclose(sorted(np.exp(tree.scores[1:])), [0.24, 0.3, 0.3, 0.6], rtol=1e-5)
    assert Threshold(0.18)(Draft.from_log_probs(0, log_probs), 2).num_nodes == 3


def test_static_follows_its_choices():
    logits = np.arange(12, dtype=np.float32).reshape(2, 6)
    tree = Static(((1, 0), (0,), (1,)))(Draft(7, logits), 9)
    assert tree.token_ids.tolist() == [7, 5, 4, 5]
    assert tree.parents.tolist() == [-1, 0, 0, 2]
    assert Static(((0,), (0, 0), (0, 0, 0)))(Draft(7, logits), 9).num_nodes == 3  # the draft is 2 deep


def test_eagle_rerank_leaves_out_what_left_the_beam():
    log_probs = np.log([[0.6, 0.4], [0.5, 0.5]]).astype(np.float32)
    narrow = EagleRerank(top_k=1)(Draft.from_log_probs(0, log_probs), 8)
    assert ranks_of(narrow) == [(0,), (0, 0)]
    wide = EagleRerank(top_k=8)(Draft.from_log_probs(0, log_probs), 8)
    assert ranks_of(wide) == ranks_of(DDTree()(Draft.from_log_probs(0, log_probs), 8))


def test_sampled_children_follow_the_drafters_distribution():
    probs = np.array([[0.5, 0.3, 0.2]])
    first = np.zeros(3)
    for seed in range(4000):
        draft = Draft.from_log_probs(0, np.log(probs).astype(np.float32), kdnb.noise.Noise(seed))
        tree = Sampled(children=(2,))(draft, 9)
        assert len(set(tree.token_ids[1:].tolist())) == 2
        first[tree.token_ids[1]] += 1
    expected = probs[0] * 4000
    assert ((first - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resolve("best"), 'policy "best" is unknown; use one of ddtree'),
        (lambda: resolve(7), "policy is 7"),
        (lambda: Threshold(0.0), "min_prob is 0.0"),
        (lambda: EagleRerank(0), "top_k is 0"),
        (lambda: Static(((0, 0),)), r"choices has \(0, 0\) but not its beginning \(0,\)"),
        (lambda: Static(((0,), (0,))), "twice"),
        (lambda: Static(((-1,),)), r"choices has \(-1,\)"),
        (lambda: Sampled(children=()), "children is"),
        (lambda: Sampled(temperature=0), "temperature is 0"),
        (lambda: kdnb.build_tree([[0.0]], -1), "node_budget is -1"),
        (lambda: kdnb.build_tree([[0.0]], True), "node_budget is True"),
        (lambda: kdnb.build_tree([[0.0]], 1.5), "node_budget is 1.5"),
    ],
)
def test_bad_choices_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_bad_log_probs_are_refused():
    with pytest.raises(DrafterError, match="NaN"):
        kdnb.build_tree([[float("nan"), 0.0]], 3)
    with pytest.raises(DrafterError, match=r"\[3\]"):
        kdnb.build_tree([0.0, 1.0, 2.0], 3)

"""Tree policies against brute force, ties included, and what they refuse."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdnb
from kdnb.draft import Draft
from kdnb.errors import ConfigError, DrafterError, PolicyError
from kdnb.policies import BUILT_IN, DDTree, EagleRerank, Sampled, Static, Threshold, check_tree, resolve


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


def test_static_takes_shorter_paths_first():
    shape = Static(((0, 0, 0), (0,), (0, 0), (1,)))
    assert shape.choices == ((0,), (1,), (0, 0), (0, 0, 0))
    assert Static(((1,), (0,))) == Static(((0,), (1,)))
    cut = shape(Draft(7, np.array([[2.0, 1.0, 0.0]] * 3, dtype=np.float32)), 2)
    assert ranks_of(cut) == [(0,), (1,)]


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


@settings(max_examples=100, deadline=None)
@given(grids(), st.integers(0, 60))
def test_the_spine_and_then_the_best_of_the_rest(log_probs, budget):
    """What DDTree(spine=True) chooses, by brute force; in the order of every best-first tree."""
    everything, _ = brute_force(log_probs, None)
    spine = [(0,) * depth for depth in range(1, len(log_probs) + 1)][:budget]
    others = [ranks for ranks, _ in everything if ranks not in spine][: budget - len(spine)]
    chosen = {*spine, *others}
    tree = DDTree(spine=True)(Draft.from_log_probs(0, log_probs), budget)
    assert ranks_of(tree) == [ranks for ranks, _ in everything if ranks in chosen]


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 60), st.integers(1, 5))
def test_eagle_rerank_by_brute_force(log_probs, budget, width):
    everything, _ = brute_force(log_probs, None)
    beam, found = {()}, set()
    for depth in range(1, len(log_probs) + 1):
        level = [r for r, _ in everything if len(r) == depth and r[:-1] in beam and r[-1] < width]
        found |= set(level)
        beam = set(level[:width])
    tree = EagleRerank(width)(Draft.from_log_probs(0, log_probs), budget)
    assert ranks_of(tree) == [ranks for ranks, _ in everything if ranks in found][:budget]


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 60), st.sampled_from([0.9, 0.5, 0.2, 0.01]))
def test_threshold_by_brute_force(log_probs, budget, min_prob):
    everything, _ = brute_force(log_probs, None)
    kept = [ranks for ranks, score in everything if np.exp(score) >= min_prob]
    tree = Threshold(min_prob)(Draft.from_log_probs(0, log_probs), budget)
    assert ranks_of(tree) == kept[:budget]


def test_a_prefix_at_the_threshold_is_kept():
    """log(1/4) in float32 is a little below log(1/4)."""
    assert Threshold(0.25)(Draft(0, np.zeros((1, 4), dtype=np.float32)), 9).num_nodes == 5
    assert Threshold(1 / 3)(Draft(0, np.zeros((1, 3), dtype=np.float32)), 9).num_nodes == 4
    assert Threshold(0.2501)(Draft(0, np.zeros((1, 4), dtype=np.float32)), 9).num_nodes == 1


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@pytest.mark.parametrize("budget", [-1, True, 2.0, "3", None])
def test_every_policy_refuses_a_bad_budget(name, budget):
    with pytest.raises(ConfigError, match=r"node_budget is .*; use an integer from 0 up"):
        BUILT_IN[name](Draft(0, np.zeros((2, 4))), budget)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_policy_on_the_smallest_drafts(name):
    policy = BUILT_IN[name]
    assert policy(Draft(4, np.zeros((0, 5))), 9).num_nodes == 1
    assert policy(Draft(4, np.zeros((3, 5))), 0).token_ids.tolist() == [4]
    assert policy(Draft(4, np.zeros((3, 5))), np.int64(2)).num_nodes <= 3
    one = policy(Draft(0, np.zeros((3, 1))), 9)  # one token: a chain, and a sure one
    assert one.is_chain
    assert set(one.token_ids.tolist()) == {0}


def test_a_budget_above_all_nodes_gives_the_full_tree():
    full = kdnb.build_tree(np.log(np.full((3, 2), 0.5)), 10**6)
    assert full.num_nodes == 1 + 2 + 4 + 8
    assert EagleRerank(99)(Draft(0, np.zeros((2, 3))), 99).num_nodes == 1 + 3 + 9


def test_a_tie_between_child_and_parent_keeps_the_parent_first():
    log_probs = np.array([[0.0, -np.inf], [0.0, -1.0], [0.0, -2.0]], dtype=np.float32)
    tree = kdnb.build_tree(log_probs, 5)
    assert ranks_of(tree) == [(0,), (0, 0), (0, 0, 0), (0, 1), (0, 1, 0)]
    assert tree.scores.tolist() == [0, 0, 0, 0, -1, -1]


def test_every_neighbour_of_a_large_tree_is_worse():
    logits = np.random.default_rng(0).standard_normal((7, 5000)).astype(np.float32) * 3
    tree = kdnb.policies.DDTree()(Draft(1, logits), 1024)
    assert tree.num_nodes == 1025
    keys = list(zip((-tree.scores[1:]).tolist(), ranks_of(tree), strict=True))
    assert keys == sorted(keys)
    inside = set(ranks_of(tree))
    worst = keys[-1]
    _, best = Draft(1, logits).top_k(1024)
    for ranks in {(*r[:-1], r[-1] + 1) for r in inside} | {(*r, 0) for r in inside if len(r) < 7}:
        if ranks not in inside:  # every neighbour left out is worse than the last one taken
            score = sum(float(best[level, rank]) for level, rank in enumerate(ranks))
            assert (-score, ranks) > worst


def test_sampled_trees_say_what_they_were_drawn_from():
    logits = np.array([[0.0, 1.0, -np.inf, 2.0], [1.0, 0.0, 0.0, -np.inf]], dtype=np.float32)
    tree = Sampled((4,), temperature=2.0)(Draft(3, logits, noise=kdnb.noise.Noise(1)), 99)
    weights = np.exp(logits / 2)
    np.testing.assert_allclose(tree.sampled_from, weights / weights.sum(axis=1, keepdims=True), rtol=1e-6)
    assert sorted(tree.token_ids[tree.children[0]].tolist()) == [0, 1, 3]  # never a token that cannot come
    assert tree.num_nodes == 1 + 3 + 9


def test_nodes_of_one_depth_draw_for_themselves():
    pairs = np.zeros((4, 4))
    for seed in range(400):
        draft = Draft(0, np.zeros((2, 4)), noise=kdnb.noise.Noise(seed))
        tree = Sampled((2, 1))(draft, 9)
        assert tree.parents.tolist() == [-1, 0, 0, 1, 2]
        pairs[tree.token_ids[3], tree.token_ids[4]] += 1
    assert ((pairs - 25) ** 2 / 25).sum() < 37.7  # 15 degrees, p = 0.001


def test_without_the_rounds_noise_a_sampled_tree_claims_nothing():
    tree = Sampled()(Draft(3, np.zeros((2, 4))), 9)
    assert tree.num_nodes == 10
    assert tree.sampled_from is None


def test_the_second_child_is_drawn_from_what_the_first_left():
    probs = np.array([0.6, 0.3, 0.1])
    seconds = np.zeros((3, 3))
    for seed in range(4000):
        draft = Draft.from_log_probs(0, [np.log(probs)], kdnb.noise.Noise(seed))
        first, second = Sampled((2,))(draft, 9).token_ids[1:]
        seconds[first, second] += 1
    rest = probs[None, :] * (1 - np.eye(3))
    expected = 4000 * probs[:, None] * rest / rest.sum(axis=1, keepdims=True)
    possible = expected > 0
    assert seconds[~possible].sum() == 0
    statistic = ((seconds - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < 20.5  # 5 degrees, p = 0.001


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: resolve(DDTree), r"policy is the class DDTree; pass an object: DDTree\(\)"),
        (lambda: EagleRerank(True), "top_k is True"),
        (lambda: EagleRerank(2.5), "top_k is 2.5"),
        (lambda: Threshold(True), "min_prob is True"),
        (lambda: Threshold(float("nan")), "min_prob is nan"),
        (lambda: Static(((True,),)), r"choices has \(True,\)"),
        (lambda: Static(((),)), r"choices has \(\)"),
        (lambda: Sampled(children=(2, 0)), "children is 0"),
        (lambda: Sampled(children=3), "children is 3; use one positive integer per depth"),
        (lambda: Sampled(temperature=float("inf")), "temperature is inf"),
    ],
)
def test_more_bad_choices_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_logits_passed_as_log_probs_are_refused():
    with pytest.raises(DrafterError, match=r"log_probs\[0, 0\] is 4, but a log-prob is at most 0"):
        kdnb.build_tree([[4.0, -1.0]], 3)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (None, "the policy returned NoneType; return a DraftTree"),
        (kdnb.DraftTree.root_only(4), "the tree's root is token 4 but the last emitted token is 3"),
        (
            kdnb.DraftTree.from_parents([3, 1, 2, 0], [-1, 0, 0, 0]),
            "the tree drafts 3 nodes but node_budget is 2",
        ),
        (
            kdnb.DraftTree.from_parents([3, 9], [-1, 0]),
            "node 1 is token 9 but ids of this model go from 0 to 8",
        ),
    ],
)
def test_the_loops_guard(tree, message):
    with pytest.raises(PolicyError, match=message):
        check_tree(tree, root_id=3, node_budget=2, vocab_size=9)

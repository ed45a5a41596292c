"""Verify rules: exactness, distributions, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.acceptance import Acceptance
from kdnb.draft import Draft
from kdnb.errors import ConfigError, ShapeError, TokenError, VerifyRuleError
from kdnb.noise import Noise
from kdnb.policies import DDTree, Sampled
from kdnb.reference.transforms import draw_token, softmax, transform_logits
from kdnb.tree import DraftTree
from kdnb.verify_rules import (
    Greedy,
    MultiRoundRejection,
    SampleAndWalk,
    TypicalAcceptanceLossy,
    accept,
    check_acceptance,
    resolve,
    sample_and_walk,
)

VOCAB = 4
CHI_SQUARE_999 = {3: 16.27, 15: 37.70}  # 0.1 % points


class Markov:
    """A toy target: the next token depends on the last one only."""

    def __init__(self, seed=0):
        self.logits = np.random.default_rng(seed).standard_normal((VOCAB, VOCAB)).astype(np.float32)

    def rows(self, tree):
        return self.logits[tree.token_ids]

    def probs(self, rule):
        scaled = transform_logits(self.logits, rule.temperature, rule.top_k, rule.top_p)
        exp = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        return exp / exp.sum(axis=1, keepdims=True)


def decode(target, rule, policy, seed, count, budget=8, root=0):
    """Emit `count` tokens after a root with draft trees from a fixed wrong drafter."""
    drafts = np.random.default_rng(7).standard_normal((3, VOCAB)).astype(np.float32)
    out, root_id, prefix_len = [], root, 5
    while len(out) < count:
        noise = Noise(seed, prefix_len)
        tree = policy(Draft(root_id, drafts, noise=noise), budget)
        acceptance = rule(tree, target.rows(tree), noise)
        check_acceptance(tree, acceptance, VOCAB)
        out += [*tree.token_ids[acceptance.accepted[1:]].tolist(), acceptance.bonus_id]
        root_id, prefix_len = out[-1], prefix_len + acceptance.num_emitted
    return out[:count]


def check_distribution(target, rule, policy, seeds):
    """Chi-square of the first token, and of first and second together, against the exact distribution."""
    probs = target.probs(rule)
    pairs = np.zeros((VOCAB, VOCAB))
    for seed in range(seeds):
        first, second = decode(target, rule, policy, seed, 2)
        pairs[first, second] += 1
    expected = seeds * probs[0][:, None] * probs
    for counts, wanted, degrees in (
        (pairs.sum(axis=1), expected.sum(axis=1), VOCAB - 1),
        (pairs.ravel(), expected.ravel(), VOCAB * VOCAB - 1),
    ):
        assert counts[wanted == 0].sum() == 0
        possible = wanted > 0
        statistic = ((counts - wanted)[possible] ** 2 / wanted[possible]).sum()
        assert statistic < CHI_SQUARE_999[degrees], f"chi-square {statistic:.1f} of {degrees} degrees"


@pytest.mark.parametrize(
    "rule",
    [
        SampleAndWalk(1.0),
        SampleAndWalk(0.6),
        SampleAndWalk(1.3, top_k=2),
        SampleAndWalk(1.0, top_p=0.7),
        MultiRoundRejection(1.0),
        MultiRoundRejection(0.7, top_k=3),
        MultiRoundRejection(1.2, top_p=0.8),
    ],
    ids=repr,
)
def test_first_and_second_token_follow_the_target(rule):
    policy = Sampled((3, 2, 1)) if isinstance(rule, MultiRoundRejection) else DDTree()
    check_distribution(Markov(), rule, policy, 3000)


def test_a_wrong_distribution_would_be_noticed():
    """The chi-square has the power to see a rule that samples at another temperature."""

    class Wrong(SampleAndWalk):
        def __call__(self, tree, target_logits, noise):
            return SampleAndWalk(self.temperature * 1.3)(tree, target_logits, noise)

    with pytest.raises(AssertionError, match="chi-square"):
        check_distribution(Markov(), Wrong(1.0), DDTree(), 3000)


def test_sampling_gives_one_text_whatever_the_tree():
    target, rule = Markov(3), SampleAndWalk(1.1, top_p=0.9)
    for seed in range(20):
        plain = decode(target, rule, DDTree(), seed, 30, budget=0)
        for budget in (1, 5, 40):
            assert decode(target, rule, DDTree(), seed, 30, budget) == plain
            assert decode(target, rule, Sampled((2, 1)), seed, 30, budget) == plain
    assert len({tuple(decode(target, rule, DDTree(), seed, 30)) for seed in range(20)}) > 15


def test_rejection_accepts_the_overlap_of_draft_and_target():
    target, rule = Markov(), MultiRoundRejection(1.0)
    p = target.probs(rule)[0]
    for logits in (target.logits[0], -target.logits[0]):
        q = np.exp(logits) / np.exp(logits).sum()
        total = 0
        for seed in range(300):
            noise = Noise(seed, 3)
            tree = Sampled((1,))(Draft(0, logits[None], noise=noise), 1)
            total += rule(tree, target.rows(tree), noise).num_accepted
        overlap = np.minimum(p, q).sum()  # 1 where the draft is the target
        spread = np.sqrt(300 * overlap * max(1 - overlap, 0))
        assert abs(total - 300 * overlap) <= 4 * spread + 1e-6


def test_greedy_takes_the_lower_id_of_equal_logits():
    tree = DraftTree.from_parents([0, 1, 2], [-1, 0, 0])
    logits = np.zeros((3, VOCAB), dtype=np.float32)
    logits[0, [1, 2]] = 5
    acceptance = Greedy()(tree, logits, Noise(0))
    assert acceptance.accepted.tolist() == [0, 1]
    assert acceptance.min_gap == 0


def test_min_gap_is_taken_on_the_kept_path_only():
    tree = DraftTree.from_parents([0, 1, 2], [-1, 0, 0])
    logits = np.array([[0, 3, 1, 0], [0, 0, 0, 1.5], [0, 0, 0, 0.001]], dtype=np.float32)
    acceptance = Greedy()(tree, logits, Noise(0))
    assert acceptance.accepted.tolist() == [0, 1]
    assert acceptance.min_gap == pytest.approx(1.5)


def test_typical_acceptance_is_marked_lossy_and_keeps_the_longest_plausible_path():
    rule = TypicalAcceptanceLossy(epsilon=0.2, delta=1.0)
    assert rule.lossless is False
    assert "Lossy" in repr(rule)
    tree = DraftTree.from_parents([0, 1, 2, 3], [-1, 0, 1, 0])
    logits = np.log(np.array([[0.1, 0.3, 0.1, 0.5], [0.1, 0.1, 0.7, 0.1], [0.4, 0.2, 0.2, 0.2], [0.25] * 4]))
    acceptance = rule(tree, logits.astype(np.float32), Noise(0))
    assert acceptance.accepted.tolist() == [0, 1, 2]
    assert acceptance.bonus_id == 0


def test_transforms_by_hand():
    logits = np.log([[0.4, 0.3, 0.2, 0.1]])
    kept = np.isfinite(transform_logits(logits, 1.0, 2, 1.0))
    assert kept.tolist() == [[True, True, False, False]]
    # the best tokens whose sum reaches 0.65: 0.4 + 0.3
    assert np.isfinite(transform_logits(logits, 1.0, 0, 0.65)).tolist() == [[True, True, False, False]]
    assert np.isfinite(transform_logits(logits, 1.0, 0, 0.01)).sum() == 1
    np.testing.assert_allclose(transform_logits(logits, 2.0, 0, 1.0), logits / 2)
    ties = np.zeros((1, 4))
    assert np.isfinite(transform_logits(ties, 1.0, 2, 1.0)).tolist() == [[True, True, False, False]]


def test_noise_depends_on_seed_position_and_id_alone():
    a = Noise(3, prefix_len=10).gumbel(2, 50)
    np.testing.assert_array_equal(a, Noise(3, prefix_len=12).gumbel(0, 50))
    np.testing.assert_array_equal(a[:20], Noise(3, prefix_len=10).gumbel(2, 20))
    assert (a != Noise(4, prefix_len=10).gumbel(2, 50)).any()
    assert (a != Noise(3, prefix_len=10).gumbel(3, 50)).any()
    assert np.isfinite(Noise(0).gumbel(0, 200_000)).all()


def test_noise_is_what_its_documentation_says():
    bits = np.random.Philox(key=[5, 0], counter=[0, 0, 0, 8])
    u = np.random.Generator(bits).random(4)
    np.testing.assert_array_equal(
        Noise(5, prefix_len=6).gumbel(1, 4), (-np.log(-np.log(u))).astype(np.float32)
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: accept(DraftTree.root_only(1), [1, 2]),
            ShapeError,
            r"next_ids has shape \[2\] but the tree has 1",
        ),
        (lambda: accept(DraftTree.root_only(1), [1.5]), ShapeError, "float64"),
        (lambda: SampleAndWalk(0.0), ConfigError, "temperature is 0.0"),
        (lambda: SampleAndWalk(float("nan")), ConfigError, "temperature is nan"),
        (lambda: SampleAndWalk(1.0, top_p=1.5), ConfigError, "top_p is 1.5"),
        (lambda: SampleAndWalk(1.0, top_k=-1), ConfigError, "top_k is -1"),
        (lambda: resolve(0.5, 0, 1.0, Greedy()), ConfigError, "brings its own parameters"),
        (lambda: resolve(0, 0, 1.0, 7), ConfigError, "verify_rule is 7"),
        (lambda: TypicalAcceptanceLossy(epsilon=0), ConfigError, "epsilon is 0"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_nan_logits_name_the_node():
    tree = DraftTree.from_parents([0, 1], [-1, 0])
    logits = np.zeros((2, VOCAB), dtype=np.float32)
    logits[1, 2] = np.nan
    for rule in (Greedy(), SampleAndWalk(1.0), TypicalAcceptanceLossy()):
        with pytest.raises(VerifyRuleError, match="node 1 hold NaN"):
            rule(tree, logits, Noise(0))


def test_rejection_needs_a_sampled_tree():
    tree = DraftTree.from_parents([0, 1], [-1, 0])
    with pytest.raises(VerifyRuleError, match='use the policy "sampled"'):
        MultiRoundRejection(1.0)(tree, np.zeros((2, VOCAB), dtype=np.float32), Noise(0))


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        (None, "returned NoneType"),
        (Acceptance(np.array([1]), 0), "must start at the root"),
        (Acceptance(np.array([], dtype=int), 0), "must start at the root"),
        (Acceptance(np.array([0, 9]), 0), "the tree has nodes 0 to 2"),
        (Acceptance(np.array([0, 2]), 0), "from node 0 to node 2, whose parent is 1"),
        (Acceptance(np.array([0]), 99), "bonus_id is 99"),
    ],
)
def test_the_loops_guard(acceptance, message):
    tree = DraftTree.from_parents([0, 1, 2], [-1, 0, 1])
    with pytest.raises(VerifyRuleError, match=message):
        check_acceptance(tree, acceptance, VOCAB)


def random_tree(seed, num_nodes=12):
    rng = np.random.default_rng(seed)
    parents, used = [-1], {}
    token_ids = [0]
    while len(parents) < num_nodes:
        parent = int(rng.integers(0, len(parents)))
        free = sorted(set(range(VOCAB)) - used.setdefault(parent, set()))
        if free:
            token_ids.append(int(rng.choice(free)))
            used[parent].add(token_ids[-1])
            parents.append(parent)
    return DraftTree.from_parents(token_ids, parents)


@pytest.mark.parametrize("rule", [SampleAndWalk(1.0), SampleAndWalk(0.8, top_k=3, top_p=0.95)], ids=repr)
def test_sampling_draws_at_every_node_what_plain_decoding_would_draw_there(rule):
    for seed in range(10):
        tree = random_tree(seed)
        logits = np.random.default_rng(seed).standard_normal((tree.num_nodes, VOCAB)).astype(np.float32)
        acceptance = rule(tree, logits, Noise(seed, prefix_len=4))
        for node, depth in enumerate(tree.depths.tolist()):
            alone = rule(DraftTree.root_only(0), logits[node : node + 1], Noise(seed, prefix_len=4 + depth))
            assert acceptance.next_ids[node] == alone.bonus_id
        walked = accept(tree, acceptance.next_ids)
        assert acceptance.accepted.tolist() == walked.accepted.tolist()
        assert acceptance.bonus_id == walked.bonus_id


def test_the_gap_of_sampling_is_the_gap_of_noisy_scaled_logits():
    tree = DraftTree.from_parents([0, 1, 2, 3], [-1, 0, 0, 0])
    logits = np.random.default_rng(0).standard_normal((4, VOCAB)).astype(np.float32)
    for seed in range(20):
        noise = Noise(seed)
        acceptance = SampleAndWalk(0.5)(tree, logits, noise)
        gaps = []
        for node in acceptance.accepted:
            keys = np.sort(logits[node] / 0.5 + noise.gumbel(int(tree.depths[node]), VOCAB))
            gaps.append(keys[-1] - keys[-2])
        assert acceptance.min_gap == pytest.approx(min(gaps), rel=1e-6)
    assert SampleAndWalk(1.0, top_k=1)(tree, logits, noise).min_gap == np.inf  # there was no choice
    assert Greedy()(DraftTree.root_only(0), np.zeros((1, 1)), noise).min_gap is None


def test_a_large_tree_in_parts_gives_the_same(monkeypatch):
    tree = random_tree(3, num_nodes=25)
    logits = np.random.default_rng(1).standard_normal((25, VOCAB)).astype(np.float32)
    whole = SampleAndWalk(1.0, top_k=3)(tree, logits, Noise(5))
    monkeypatch.setattr(sample_and_walk, "VALUES_AT_ONCE", 3 * VOCAB)
    parts = SampleAndWalk(1.0, top_k=3)(tree, logits, Noise(5))
    np.testing.assert_array_equal(parts.next_ids, whole.next_ids)
    assert parts.min_gap == whole.min_gap


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab_size=st.sampled_from([1, 3, 50, 700]),
    keep=st.sampled_from([0, 1, 5, 400]),
    top_p=st.sampled_from([1.0, 0.999, 0.7, 0.2, 1e-6]),
    grid=st.booleans(),
)
def test_transforms_by_brute_force(seed, vocab_size, keep, top_p, grid):
    logits = np.random.default_rng(seed).standard_normal((2, vocab_size)) * 0.8
    logits = np.round(logits * 2) if grid else logits
    kept = np.isfinite(transform_logits(logits, 0.9, keep, top_p))
    for row in range(2):
        order = sorted(range(vocab_size), key=lambda i: (-logits[row, i], i))
        order = order[: keep or None]
        weights = np.exp(logits[row, order] / 0.9)
        before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
        if np.abs(before - top_p).min() < 1e-12:
            continue  # rounding decides
        wanted = {token for token, sum_before in zip(order, before, strict=True) if sum_before < top_p}
        assert set(np.flatnonzero(kept[row]).tolist()) == wanted | {order[0]}


def test_a_tiny_temperature_is_greedy_and_does_not_overflow():
    logits = np.array([[1.0, 3.0, 2.0, -np.inf]], dtype=np.float32)
    for temperature in (1e-12, 1e-300, 5e-324):
        for rule in (SampleAndWalk(temperature), MultiRoundRejection(temperature, top_p=0.5)):
            assert rule(DraftTree.root_only(0), logits, Noise(0)).bonus_id == 1


def test_a_token_of_probability_zero_is_never_drawn():
    for draw in (2.0**-54, 0.3, 0.5, 1 - 2.0**-53):
        assert draw_token(np.array([0.0, 0.5, 0.0, 0.5, 0.0]), draw) in (1, 3)
    assert draw_token(np.array([0.0, 0.5, 0.0, 0.5]), 0.5) == 3
    np.testing.assert_array_equal(softmax(np.array([[-np.inf, 2.0]])), [[0.0, 1.0]])


def test_rejection_of_a_draft_equal_to_the_target_never_happens():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32))
    for seed in range(100):
        noise = Noise(seed)
        tree = Sampled((3,))(Draft(0, logits, noise=noise), 9)
        acceptance = MultiRoundRejection(1.0)(tree, np.repeat(logits, tree.num_nodes, axis=0), noise)
        assert acceptance.accepted.tolist() == [0, 1]
        assert acceptance.next_ids is None


def test_rejection_goes_on_when_the_target_cannot_emit_the_drafts_tokens():
    logits = np.array([[5.0, 4.0, -np.inf, -np.inf]], dtype=np.float32)
    target = np.array([[-np.inf, -np.inf, 1.0, 2.0]], dtype=np.float32)
    tree = Sampled((4,))(Draft(0, logits, noise=Noise(0)), 9)
    assert tree.num_nodes == 3  # the draft has two tokens to offer, both useless
    bonus = {
        MultiRoundRejection(1.0)(tree, np.repeat(target, 3, axis=0), Noise(s)).bonus_id for s in range(50)
    }
    assert bonus == {2, 3}


def test_typical_acceptance_copes_with_tokens_that_cannot_come():
    tree = DraftTree.from_parents([0, 1, 2], [-1, 0, 0])
    logits = np.array([[-np.inf, 1.0, -np.inf, 0.0]] * 3, dtype=np.float32)
    assert TypicalAcceptanceLossy()(tree, logits, Noise(0)).accepted.tolist() == [0, 1]


def test_typical_acceptance_takes_the_first_of_equally_long_paths():
    tree = DraftTree.from_parents([0, 1, 2, 3, 1], [-1, 0, 0, 1, 2])
    acceptance = TypicalAcceptanceLossy()(tree, np.zeros((5, VOCAB), dtype=np.float32), Noise(0))
    assert acceptance.accepted.tolist() == [0, 1, 3]


RULES = [Greedy(), SampleAndWalk(1.0), MultiRoundRejection(1.0), TypicalAcceptanceLossy()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_every_rule_refuses_logits_that_nothing_can_be_chosen_from(rule):
    tree = DraftTree(
        np.array([0, 1]), np.array([-1, 0]), sampled_from=np.full((1, VOCAB), 0.25, dtype=np.float32)
    )
    for value, what in ((np.nan, "NaN"), (np.inf, "plus infinity")):
        logits = np.zeros((2, VOCAB), dtype=np.float32)
        logits[1, 2] = value
        with pytest.raises(VerifyRuleError, match=f"target logits of node 1 hold {what}"):
            rule(tree, logits, Noise(0))
    logits[0], logits[1] = -np.inf, 0
    with pytest.raises(VerifyRuleError, match="target logits of node 0 hold minus infinity only"):
        rule(tree, logits, Noise(0))
    for shape in ((VOCAB,), (3, VOCAB), (2, 0)):
        with pytest.raises(ShapeError, match=r"target_logits has shape .* but the tree has 2 nodes"):
            rule(tree, np.zeros(shape, dtype=np.float32), Noise(0))


def test_rejection_refuses_a_tree_of_another_vocabulary_or_of_other_draws():
    probs = np.array([[0.0, 1.0, 0.0]], dtype=np.float32)
    tree = DraftTree(np.array([0, 1, 2]), np.array([-1, 0, 0]), sampled_from=probs)
    with pytest.raises(ShapeError, match="has 3 tokens per depth but the target has 4"):
        MultiRoundRejection(1.0)(tree, np.zeros((3, 4), dtype=np.float32), Noise(0))
    never = np.array([[9.0, -np.inf, -np.inf]] * 3, dtype=np.float32)
    with pytest.raises(
        VerifyRuleError, match="node 2 is token 2, which tree.sampled_from gives no probability"
    ):
        MultiRoundRejection(1.0)(tree, never, Noise(0))


def test_resolve():
    assert resolve(0, 0, 1.0) == Greedy()
    assert resolve(np.float32(0.5), np.int64(3), np.float64(0.5)) == SampleAndWalk(0.5, 3, 0.5)
    rule = MultiRoundRejection(0.7)
    assert resolve(0.0, 0, 1.0, rule) is rule


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: resolve(0.0, 0, 1.0, Greedy),
            r"verify_rule is the class Greedy; pass an object: Greedy\(\)",
        ),
        (lambda: resolve(True, 0, 1.0), "temperature is True"),
        (lambda: resolve("1", 0, 1.0), "temperature is '1'"),
        (lambda: resolve(-0.1, 0, 1.0), "temperature is -0.1"),
        (lambda: resolve(float("inf"), 0, 1.0), "temperature is inf"),
        (lambda: resolve(1.0, True, 1.0), "top_k is True"),
        (lambda: resolve(1.0, 0, 0.0), "top_p is 0.0"),
        (lambda: resolve(1.0, 0, True), "top_p is True"),
        (
            lambda: MultiRoundRejection(0.0),
            r"temperature is 0.0; use a number above 0 \(0 is the rule Greedy\)",
        ),
        (lambda: MultiRoundRejection(1.0, top_k=1.5), "top_k is 1.5"),
        (lambda: TypicalAcceptanceLossy(delta=2), "delta is 2"),
    ],
)
def test_more_refusals(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_negative_choice_is_refused():
    with pytest.raises(TokenError, match=r"next_ids\[1\] is -1; token ids are 0 or more"):
        accept(DraftTree.from_parents([0, 1], [-1, 0]), [1, -1])


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        (Acceptance(np.array([0.0, 1.0]), 0), "accepted has dtype float64"),
        (Acceptance(np.array([0]), -1), "bonus_id is -1"),
        (Acceptance(np.array([0]), 1.5), "bonus_id is 1.5; it must be a token id"),
        (
            Acceptance(np.array([0]), 1, next_ids=np.array([1, 2])),
            r"next_ids has shape \[2\] but the tree has 3",
        ),
        (Acceptance(np.array([0, 0]), 1), "from node 0 to node 0"),
    ],
)
def test_more_of_the_loops_guard(acceptance, message):
    tree = DraftTree.from_parents([0, 1, 2], [-1, 0, 1])
    with pytest.raises(VerifyRuleError, match=message):
        check_acceptance(tree, acceptance, VOCAB)


def test_greedy_agrees_with_argmax_walks_on_ties():
    for seed in range(50):
        tree = random_tree(seed)
        logits = np.random.default_rng(seed).integers(0, 3, (tree.num_nodes, VOCAB)).astype(np.float32)
        acceptance = Greedy()(tree, logits, Noise(0))
        path = [0]
        while True:
            row = logits[path[-1]].tolist()
            choice = row.index(max(row))
            below = [node for node in tree.children[path[-1]] if tree.token_ids[node] == choice]
            if not below:
                break
            path += below
        assert acceptance.accepted.tolist() == path
        assert acceptance.bonus_id == choice
        ordered = np.sort(logits[path], axis=1)
        assert acceptance.min_gap == (ordered[:, -1] - ordered[:, -2]).min()

"""Verify rules: exactness, distributions, refusals."""

import numpy as np
import pytest

from kdnb.acceptance import Acceptance
from kdnb.draft import Draft
from kdnb.errors import ConfigError, ShapeError, VerifyRuleError
from kdnb.noise import Noise
from kdnb.policies import DDTree, Sampled
from kdnb.reference.transforms import transform_logits
from kdnb.tree import DraftTree
from kdnb.verify_rules import (
    Greedy,
    MultiRoundRejection,
    SampleAndWalk,
    TypicalAcceptanceLossy,
    accept,
    check_acceptance,
    resolve,
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
    u = np.random.Generator(bits).random(4) + 2.0**-54
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

"""check_policy and check_verify_rule: our own pass, and every planted fault is named."""

from dataclasses import replace

import numpy as np
import pytest

import kdnb
from kdnb.acceptance import Acceptance
from kdnb.errors import KdnbError
from kdnb.noise import Noise
from kdnb.policies import BUILT_IN, DDTree, Sampled, Static
from kdnb.reference.transforms import draw_token, softmax
from kdnb.testing import CheckFailed, check_policy, check_verify_rule
from kdnb.tree import DraftTree
from kdnb.verify_rules import (
    Greedy,
    MultiRoundRejection,
    SampleAndWalk,
    TypicalAcceptanceLossy,
    accept,
)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_our_policies_pass(name):
    check_policy(name)
    check_policy(BUILT_IN[name], seed=1)


@pytest.mark.parametrize(
    "rule",
    [
        Greedy(),
        SampleAndWalk(0.8, top_k=3, top_p=0.9),
        MultiRoundRejection(1.0),
        MultiRoundRejection(0.7, top_k=3),
        TypicalAcceptanceLossy(),
    ],
    ids=repr,
)
def test_our_rules_pass(rule):
    check_verify_rule(rule)


def test_names_and_classes():
    assert kdnb.testing.check_policy is check_policy
    assert issubclass(CheckFailed, KdnbError)
    assert issubclass(CheckFailed, AssertionError)
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        _ = kdnb.testing.check_nothing


def changed(**changes):
    """A policy that builds the right tree, then says something wrong of it."""

    def policy(draft, node_budget):
        tree = Sampled()(draft, node_budget) if "sampled_from" in changes else DDTree()(draft, node_budget)
        if tree.num_nodes < 3:
            return tree
        return replace(tree, **{name: change(tree) for name, change in changes.items()})

    return policy


class Counter:
    """A policy with a memory."""

    def __init__(self):
        self.calls = 0

    def __call__(self, draft, node_budget):
        self.calls += 1
        return Static(((0,), (1,)) if self.calls % 2 else ((0,),))(draft, node_budget)


def in_place(draft, node_budget):
    draft.log_probs  # noqa: B018
    draft._logits[:] = np.round(draft._logits) + 1
    return DraftTree.root_only(draft.root_id)


def shifted(tree, name):
    array = getattr(tree, name).copy()
    array[-1] -= 1
    return array


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda draft, budget: None, "draft 'no depth', node_budget 0: the policy returned NoneType"),
        (lambda draft, budget: DDTree()(draft, budget + 1), "the tree drafts 1 nodes but node_budget is 0"),
        (lambda draft, budget: DraftTree.root_only(2), "the tree's root is token 2"),
        (lambda draft, budget: DDTree()(draft, budget).with_root(-1), "the tree's root is token -1"),
        (
            lambda draft, budget: DraftTree.from_parents([0, 1][: budget + 1], [-1, 0][: budget + 1]),
            "draft 'no depth', node_budget 1: the tree is 1 deep but the draft only 0",
        ),
        (changed(scores=lambda tree: shifted(tree, "scores")), r"scores\[\d+\] is -?[\d.]+, but the draft"),
        (
            changed(draft_log_probs=lambda tree: shifted(tree, "draft_log_probs")),
            r"draft_log_probs\[\d+\] is",
        ),
        (changed(ranks=lambda tree: tree.ranks[::-1] + 1), r"ranks\[0\] is"),
        (changed(sampled_from=lambda tree: tree.sampled_from / 2), "it must sum to 1"),
        (changed(sampled_from=lambda tree: tree.sampled_from[:, :-1]), "sampled_from has shape"),
        (
            changed(sampled_from=lambda tree: np.eye(*tree.sampled_from.shape) * 0 + last_column(tree)),
            "to which sampled_from gives no probability",
        ),
        (Counter(), "two calls with the same draft gave different trees"),
        (in_place, "the policy changed the draft's logits"),
    ],
    ids=range(13),
)
def test_a_broken_policy_is_named(policy, message):
    with pytest.raises(CheckFailed, match=message):
        check_policy(policy)


def last_column(tree):
    column = np.zeros(tree.sampled_from.shape[1])
    column[-1] = 1
    return column


class Rule:
    """A greedy rule that is right until something is overridden."""

    lossless = True
    temperature = 0.0

    def __call__(self, tree, logits, noise):
        return accept(tree, logits.argmax(axis=1))


class WrongBonus(Rule):
    def __call__(self, tree, logits, noise):
        right = super().__call__(tree, logits, noise)
        return Acceptance(right.accepted, (right.bonus_id + 1) % logits.shape[1])


class FirstChild(Rule):
    def __call__(self, tree, logits, noise):
        path = [0]
        while tree.children[path[-1]]:
            path.append(tree.children[path[-1]][0])
        return Acceptance(np.array(path), int(logits[path[-1]].argmax()))


class HigherId(Rule):
    def __call__(self, tree, logits, noise):
        return accept(tree, logits.shape[1] - 1 - logits[:, ::-1].argmax(axis=1))


class NoPath(Rule):
    lossless = False

    def __call__(self, tree, logits, noise):
        return Acceptance(np.arange(tree.num_nodes), 0)


class Liar(Rule):
    def __call__(self, tree, logits, noise):
        right = super().__call__(tree, logits, noise)
        return replace(right, next_ids=(right.next_ids + 1) % logits.shape[1])


class InPlace(Rule):
    def __call__(self, tree, logits, noise):
        logits += 1
        return super().__call__(tree, logits, noise)


class OwnDice(Rule):
    temperature = 1.0

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, tree, logits, noise):
        return SampleAndWalk(1.0)(tree, logits, Noise(int(self.rng.integers(10**6))))


class IgnoresTopK(Rule):
    temperature, top_k = 1.0, 2

    def __call__(self, tree, logits, noise):
        return SampleAndWalk(1.0)(tree, logits, noise)


class TooHot(Rule):
    temperature = 1.0

    def __call__(self, tree, logits, noise):
        return SampleAndWalk(1.3)(tree, logits, noise)


class OneNoisePerRound(Rule):
    temperature = 1.0

    def __call__(self, tree, logits, noise):
        return accept(tree, (logits + noise.gumbel(0, logits.shape[1])).argmax(axis=1))


class OneNoisePerRun(Rule):
    temperature = 1.0

    def __call__(self, tree, logits, noise):
        return SampleAndWalk(1.0)(tree, logits, Noise(noise.seed))


class LongestOfTwo(Rule):
    temperature = 1.0

    def __call__(self, tree, logits, noise):
        both = [
            SampleAndWalk(1.0)(tree, logits, replace(noise, seed=noise.seed + more)) for more in (0, 9999)
        ]
        return max(both, key=lambda acceptance: acceptance.num_accepted)


class Rejection(Rule):
    """Multi-round rejection with one step left out."""

    temperature = 1.0

    def __init__(self, left_out):
        self.left_out = left_out

    def __call__(self, tree, logits, noise):
        path = [0]
        while True:
            node = path[-1]
            depth = int(tree.depths[node])
            target = first_target = softmax(logits[node : node + 1])[0]
            draws = noise.uniform(depth, 2, len(tree.children[node]) + 1)
            kept = None
            for child, draw in zip(tree.children[node], draws, strict=False):
                token_id = int(tree.token_ids[child])
                draft = tree.sampled_from[depth].astype(np.float64)
                if self.left_out != "draft without the child":
                    draft[[int(tree.token_ids[c]) for c in tree.children[node] if c < child]] = 0
                draft /= draft.sum()
                if draw * (1 if self.left_out == "ratio" else draft[token_id]) < target[token_id]:
                    kept = child
                    break
                left = np.maximum(target - draft, 0)
                if self.left_out != "residual" and left.sum() > 0:
                    target = left / left.sum()
            if kept is None:
                bonus = first_target if self.left_out == "residual bonus" else target
                return Acceptance(np.array(path), draw_token(bonus, draws[-1]))
            path.append(kept)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Greedy, "rule is the class Greedy; pass an object"),
        (accept, "has no attribute lossless"),
        (WrongBonus(), r"case 0 \(random\): the rule emits token \d+ after node 0, where the target alone"),
        (FirstChild(), "where the target alone would never; its best there is token"),
        (HigherId(), r"\(ties\): the rule emits token"),
        (NoPath(), "it must be a path from the root down"),
        (Liar(), "its next_ids along the kept path are"),
        (InPlace(), "the rule changed the target's logits"),
        (OwnDice(), "two calls with the same noise emitted"),
        (IgnoresTopK(), "where the target alone would never"),
        (TooHot(), "first tokens do not follow the target's distribution"),
        (OneNoisePerRound(), "first and second tokens do not follow"),
        (OneNoisePerRun(), "first and second tokens do not follow"),
        (LongestOfTwo(), "do not follow the target's distribution"),
        (Rejection("draft without the child"), "first tokens do not follow"),
        (Rejection("ratio"), "first tokens do not follow"),
        (Rejection("residual"), "first tokens do not follow"),
        (Rejection("residual bonus"), "first tokens do not follow"),
    ],
    ids=lambda value: getattr(value, "left_out", type(value).__name__) if not isinstance(value, str) else "",
)
def test_a_broken_rule_is_named(rule, message):
    with pytest.raises(CheckFailed, match=message):
        check_verify_rule(rule)


class NoisePerNode(Rule):
    """Independent draws at every node: another text per tree, and yet lossless."""

    temperature = 1.0

    def __call__(self, tree, logits, noise):
        keys = logits.astype(np.float64)
        for node, depth in enumerate(tree.depths.tolist()):
            keys[node] -= np.log(-np.log(noise.uniform(depth, 50 + node, logits.shape[1])))
        return accept(tree, keys.argmax(axis=1))


class BonusOnly(Rule):
    def __call__(self, tree, logits, noise):
        return Acceptance(np.array([0]), int(logits[0].argmax()))


@pytest.mark.parametrize(
    "rule", [Rejection("nothing"), NoisePerNode(), BonusOnly()], ids=lambda r: type(r).__name__
)
def test_other_right_rules_pass(rule):
    check_verify_rule(rule)


def test_a_rule_may_bring_its_own_distribution():
    class MinP(Rule):
        """Tokens at least half as probable as the best one."""

        def __call__(self, tree, logits, noise):
            hidden = np.where(min_p(logits) > 0, logits, -np.inf)
            return SampleAndWalk(1.0)(tree, hidden, noise)

    def min_p(logits):
        probs = softmax(logits)
        probs[probs < probs.max(axis=1, keepdims=True) / 2] = 0
        return probs / probs.sum(axis=1, keepdims=True)

    check_verify_rule(MinP(), distribution=min_p)
    with pytest.raises(CheckFailed):
        check_verify_rule(MinP())


def test_a_lossy_rule_need_not_follow_the_target():
    class Lossy(WrongBonus):
        lossless = False

    check_verify_rule(Lossy())


def test_what_a_policy_raises_is_reported_with_the_draft_and_budget():
    class NeedsTwoDepths:
        def __call__(self, draft, node_budget):
            return DraftTree.from_parents([draft.root_id, *draft.top_k(1)[0][1]], [-1, 0])

    with pytest.raises(CheckFailed, match=r"draft 'no depth', node_budget 0: the policy raised IndexError"):
        check_policy(NeedsTwoDepths())


def test_what_a_rule_raises_is_reported():
    class Breaks:
        lossless = True

        def __call__(self, tree, target_logits, noise):
            return {}["nothing"]

    with pytest.raises(CheckFailed, match="the rule raised KeyError"):
        check_verify_rule(Breaks())

"""Does a tree policy keep its contract?"""

from collections.abc import Callable, Iterator

import numpy as np

from kdnb.arrays import Float32
from kdnb.draft import Draft
from kdnb.errors import KdnbError
from kdnb.noise import Noise
from kdnb.policies import TreePolicy, check_tree, resolve
from kdnb.testing.base import CheckFailed
from kdnb.tree import DraftTree

BUDGETS = (0, 1, 2, 3, 5, 8, 17, 40, 64)
ROOT_ID = 0  # a token of every vocabulary
SCORE_TOLERANCE = 1e-5  # of a sum of float32 log-probs, in nats, relative above 1


def check_policy(policy: str | TreePolicy, seed: int = 0) -> None:
    """Call a policy with small random drafts and budgets from 0 to 64, and judge every tree.

    The drafts include ties, tokens that cannot come, sure tokens, one-token vocabularies, and a draft
    that reaches no depth. A tree must be rooted at the draft's root, have node_budget drafted nodes at
    the most, not go deeper than the draft, and what it says of itself (scores, draft_log_probs, ranks,
    sampled_from) must agree with the draft. The same draft must give the same tree, and stay as it was.
    That the tree is a good one is not checked: any tree is lossless.

    Args:
        policy: A name or a TreePolicy.
        seed: Of the drafts.

    Raises:
        CheckFailed: at the first broken property; the message names the draft, the budget and the node.
    """
    policy = resolve(policy)
    for name, logits in _drafts(np.random.default_rng(seed)):
        before = logits.copy()
        for budget in BUDGETS:
            where = f"draft {name!r}, node_budget {budget}"
            tree = _call(policy, logits, budget, where)
            _check_tree(tree, Draft(ROOT_ID, logits), where)
            again = _call(policy, logits, budget, where)
            if tree.to_json() != again.to_json():
                raise CheckFailed(
                    f"{where}: two calls with the same draft gave different trees; a policy that draws "
                    "must take its numbers from draft.noise."
                )
        if not np.array_equal(before, logits):
            raise CheckFailed(f"draft {name!r}: the policy changed the draft's logits; work on a copy.")


def _drafts(rng: np.random.Generator) -> Iterator[tuple[str, Float32]]:
    """Names and logits, float32 [max_depth, vocab_size]."""

    def normal(depth: int, vocab_size: int, spread: float) -> Float32:
        return (rng.standard_normal((depth, vocab_size)) * spread).astype(np.float32)

    yield "no depth", np.zeros((0, 5), dtype=np.float32)
    yield "one token", np.zeros((3, 1), dtype=np.float32)
    yield "one depth", normal(1, 9, 1.0)
    yield "all tokens equal", np.zeros((3, 4), dtype=np.float32)
    yield "sure of one token", normal(4, 5, 1.0) + np.float32(200) * np.eye(4, 5, dtype=np.float32)
    impossible = normal(4, 6, 1.0)
    impossible[:, 1::2] = -np.inf
    yield "tokens that cannot come", impossible
    for index in range(4):
        depth, vocab_size = int(rng.integers(2, 8)), int(rng.integers(2, 40))
        yield f"random {index}", normal(depth, vocab_size, float(rng.uniform(0.2, 4)))
        grid = rng.integers(-2, 3, (depth, vocab_size)).astype(np.float32)
        yield f"ties {index}", grid


def _call(policy: TreePolicy, logits: Float32, budget: int, where: str) -> DraftTree:
    draft = Draft(ROOT_ID, logits, noise=Noise(3, prefix_len=11))
    try:
        tree = policy(draft, budget)
        check_tree(tree, ROOT_ID, budget, logits.shape[1])
    except CheckFailed:
        raise
    except KdnbError as error:
        raise CheckFailed(f"{where}: {error}") from error
    except Exception as error:  # whatever a foreign object raises
        raise CheckFailed(f"{where}: the policy raised {type(error).__name__}: {error}") from error
    return tree


def _check_tree(tree: DraftTree, draft: Draft, where: str) -> None:
    if tree.max_depth > draft.max_depth:
        raise CheckFailed(f"{where}: the tree is {tree.max_depth} deep but the draft only {draft.max_depth}.")
    depths, ids = tree.depths[1:] - 1, tree.token_ids[1:]
    own = np.zeros(tree.num_nodes, dtype=np.float64)
    own[1:] = draft.log_probs[depths, ids]
    sums = own.copy()
    for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
        sums[node] += sums[parent]
    ranks = np.zeros(tree.num_nodes, dtype=np.int64)
    order, _ = draft.top_k(draft.vocab_size)
    ranks[1:] = np.argsort(order, axis=1)[depths, ids]  # the inverse permutation

    def compare(name: str, wanted: np.ndarray, close: Callable[[float, float], bool]) -> None:
        value = getattr(tree, name)
        if value is None:
            return
        for node, (got, want) in enumerate(zip(value.tolist(), wanted.tolist(), strict=True)):
            if not close(got, want):
                raise CheckFailed(f"{where}: {name}[{node}] is {got:g}, but the draft says {want:g}.")

    def nearly(got: float, want: float) -> bool:
        return got == want or abs(got - want) <= SCORE_TOLERANCE * max(1.0, abs(want))

    compare("draft_log_probs", own, nearly)
    compare("scores", sums, nearly)
    compare("ranks", ranks, lambda got, want: got == want)
    if tree.sampled_from is not None:
        _check_sampled_from(tree, draft, where)


def _check_sampled_from(tree: DraftTree, draft: Draft, where: str) -> None:
    probs = tree.sampled_from
    assert probs is not None
    shape = (draft.max_depth, draft.vocab_size)
    if probs.shape != shape:
        raise CheckFailed(f"{where}: sampled_from has shape {list(probs.shape)}, expected {list(shape)}.")
    if not (probs >= 0).all() or not np.allclose(probs.sum(axis=1), 1, atol=1e-4):
        raise CheckFailed(f"{where}: a row of sampled_from is no distribution; it must sum to 1.")
    for node in range(1, tree.num_nodes):
        if not probs[tree.depths[node] - 1, tree.token_ids[node]] > 0:
            raise CheckFailed(
                f"{where}: node {node} is token {int(tree.token_ids[node])}, to which sampled_from gives "
                "no probability."
            )

"""Rejection sampling down a tree whose children were drawn from the drafter."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Float64, Floats
from kdnb.errors import ShapeError, VerifyRuleError
from kdnb.noise import Noise
from kdnb.reference.transforms import draw_token, softmax, transform_logits
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_logits, check_sampling

REJECTION_STREAM = 2  # of the accept-or-reject draws and the residual draw


@dataclass(frozen=True)
class MultiRoundRejection:
    """Try a node's children one by one against the target; for drafters that sample. Lossless.

    Lossless in distribution: the text differs from plain sampling's with the same seed, but follows the
    same distribution. The tree must say what its children were drawn from (tree.sampled_from), drawn
    without replacement as the policy `sampled` does.

    Args:
        temperature: Of the target; greater than 0.
        top_k: As SampleAndWalk.
        top_p: As SampleAndWalk.

    Raises:
        ConfigError: if a value is out of range.
    Source: Miao et al. 2023 (arXiv:2305.09781) algorithm 2, with draws without replacement as in
        Jeon et al. 2024 (arXiv:2402.14160): accept child c with min(1, p(c) / q(c)); else
        p <- norm(max(p - q, 0)), q <- q without c, and try the next.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path; see VerifyRule.

        Raises:
            VerifyRuleError: if the tree does not say what its children were drawn from.
        """
        check_logits(tree, target_logits)
        if tree.sampled_from is None and tree.num_nodes > 1:
            raise VerifyRuleError(
                "MultiRoundRejection needs a tree whose children were drawn from known probabilities "
                '(tree.sampled_from); use the policy "sampled" with a drafter that hands context.noise on to '
                "its Draft, or the rule SampleAndWalk."
            )
        vocab_size = target_logits.shape[1]
        if tree.sampled_from is not None and tree.sampled_from.shape[1] != vocab_size:
            raise ShapeError(
                f"tree.sampled_from has {tree.sampled_from.shape[1]} tokens per depth but the target has "
                f"{vocab_size}; the drafter belongs to another vocabulary."
            )
        accepted = [0]
        while True:
            node = accepted[-1]
            depth = int(tree.depths[node])
            row = target_logits[node : node + 1]
            target = softmax(transform_logits(row, self.temperature, self.top_k, self.top_p))[0]
            children = tree.children[node]
            draws = noise.uniform(depth, REJECTION_STREAM, len(children) + 1)
            kept = None
            if children:
                assert tree.sampled_from is not None
                draft = tree.sampled_from[depth].astype(np.float64)
                kept, target = _try_children(tree, children, target, draft, draws)
            if kept is None:
                return Acceptance(np.array(accepted, dtype=np.int32), draw_token(target, draws[-1]))
            accepted.append(kept)


def _try_children(
    tree: DraftTree, children: list[int], target: Float64, draft: Float64, draws: Float64
) -> tuple[int | None, Float64]:
    """Return the accepted child, or None and what is left of the target's distribution."""
    for child, draw in zip(children, draws.tolist(), strict=False):
        token_id = int(tree.token_ids[child])
        if not draft[token_id] > 0:
            raise VerifyRuleError(
                f"node {child} is token {token_id}, which tree.sampled_from gives no probability; "
                "children must be drawn from it without replacement."
            )
        draft = draft / draft.sum()
        if draw * draft[token_id] < target[token_id]:
            return child, target
        residual = np.maximum(target - draft, 0)
        left = residual.sum()
        if left == 0:  # target and draft are equal but for rounding: nothing was to be rejected
            return child, target
        target = residual / left
        draft[token_id] = 0
    return None, target

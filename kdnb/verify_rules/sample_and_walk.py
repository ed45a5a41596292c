"""Sampling that gives the text of plain sampling, whatever the tree."""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Float64, Floats, Int32
from kdnb.noise import Noise
from kdnb.reference.transforms import transform_logits
from kdnb.reference.tree_accept import accept
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_logits, check_sampling
from kdnb.verify_rules.greedy import min_gap

VALUES_AT_ONCE = 1 << 22  # float64 keys in memory: a large tree over a large vocabulary goes in parts


@dataclass(frozen=True)
class SampleAndWalk:
    """Draw the target's token after every node, then follow the draws down the tree. Lossless.

    A draw is the argmax of transformed logits plus Gumbel noise, and the noise belongs to (seed,
    position, token id). So the draw after a node is the very draw that plain decoding would make there,
    and the text does not depend on drafter, policy or budget. Draft probabilities play no part.

    Args:
        temperature: Greater than 0.
        top_k: Sample among this many best tokens; 0 is all.
        top_p: Sample among the fewest best tokens whose probabilities reach this sum.

    Raises:
        ConfigError: if a value is out of range.
    Source: the Gumbel-max trick, Maddison et al. 2014 (arXiv:1411.0030).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sampling(self.temperature, self.top_k, self.top_p)

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path; see VerifyRule."""
        check_logits(tree, target_logits)
        vocab_size = target_logits.shape[1]
        gumbel = cache(lambda depth: noise.gumbel(depth, vocab_size))  # nodes of one depth share a position

        def keys(nodes: Int32) -> Float64:
            scaled = transform_logits(target_logits[nodes], self.temperature, self.top_k, self.top_p)
            for row, depth in enumerate(tree.depths[nodes].tolist()):
                scaled[row] += gumbel(depth)
            return scaled

        step = max(1, VALUES_AT_ONCE // vocab_size)
        nodes = np.arange(tree.num_nodes, dtype=np.int32)
        parts = [nodes[start : start + step] for start in range(0, tree.num_nodes, step)]
        acceptance = accept(tree, np.concatenate([keys(part).argmax(axis=1) for part in parts]))
        return replace(acceptance, min_gap=min_gap(keys(acceptance.accepted)))

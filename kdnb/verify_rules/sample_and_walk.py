"""Sampling that gives the text of plain sampling, whatever the tree."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Floats
from kdnb.noise import Noise
from kdnb.reference.transforms import transform_logits
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_finite, check_sampling
from kdnb.verify_rules.greedy import accept_argmax


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
        check_finite(target_logits)
        keys = transform_logits(target_logits, self.temperature, self.top_k, self.top_p)
        for depth in np.unique(tree.depths).tolist():  # nodes of one depth share a position
            keys[tree.depths == depth] += noise.gumbel(depth, keys.shape[1])
        return accept_argmax(tree, keys)

"""Keeping what the target finds plausible: faster, and not the target's own text."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Floats
from kdnb.errors import ConfigError
from kdnb.noise import Noise
from kdnb.reference.top_k import log_sum_exp
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_logits


@dataclass(frozen=True)
class TypicalAcceptanceLossy:
    """LOSSY: keep the longest path of tokens that the target rates probable enough.

    The text is neither plain greedy's nor a sample from the target; for comparison only.

    Args:
        epsilon: A token with at least this target probability passes.
        delta: So does one above delta * exp(-entropy), whichever bar is lower.

    Raises:
        ConfigError: if a value is not in (0, 1].
    Source: Cai et al. 2024 (arXiv:2401.10774) section 2.3.1; greedy choice of the bonus token.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ConfigError(f"{name} is {value}; use a probability in (0, 1].")

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path; see VerifyRule."""
        check_logits(tree, target_logits)
        rows = target_logits.astype(np.float64)
        log_probs = rows - log_sum_exp(rows)
        probs = np.exp(log_probs)
        entropy = -(probs * np.where(probs > 0, log_probs, 0.0)).sum(axis=1)
        bar = np.minimum(self.epsilon, self.delta * np.exp(-entropy))
        reached = [0] * tree.num_nodes  # depth of the path of passing nodes that ends here
        best = 0
        for node in range(1, tree.num_nodes):
            parent = int(tree.parents[node])
            alive = parent == 0 or reached[parent] > 0
            if alive and probs[parent, tree.token_ids[node]] >= bar[parent]:
                reached[node] = reached[parent] + 1
                if reached[node] > reached[best]:
                    best = node
        next_ids = rows.argmax(axis=1).astype(np.int32)
        accepted = np.array(tree.path(best), dtype=np.int32)
        return Acceptance(accepted, int(next_ids[best]), next_ids)

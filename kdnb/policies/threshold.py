"""Every prefix that is probable enough."""

from dataclasses import dataclass, replace

import numpy as np

from kdnb.draft import Draft
from kdnb.errors import ConfigError
from kdnb.policies.base import check_node_budget
from kdnb.reference.tree_build import tree_build
from kdnb.tree import DraftTree

ROUNDING = 1e-6  # of a float32 log-prob of a token that matters: log(0.25) must pass for 0.25


@dataclass(frozen=True)
class Threshold:
    """Best-first, but only prefixes with draft probability of at least `min_prob`.

    Small trees where the drafter is sure or lost, large ones in between. Log-probs are float32, so a prefix
    within 1e-6 of the bar counts as reaching it.

    Args:
        min_prob: In (0, 1].

    Raises:
        ConfigError: if it is not.
    """

    min_prob: float = 0.01

    def __post_init__(self) -> None:
        if isinstance(self.min_prob, bool) or not 0 < self.min_prob <= 1:
            raise ConfigError(f"min_prob is {self.min_prob}; use a probability in (0, 1].")

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        ids, log_probs = draft.top_k(node_budget)
        tree = tree_build(ids, log_probs, node_budget, draft.root_id)
        assert tree.scores is not None
        assert tree.ranks is not None
        assert tree.draft_log_probs is not None
        # best-first order: what is probable enough comes first
        kept = 1 + int((tree.scores[1:] >= np.log(self.min_prob) - ROUNDING).sum())
        return replace(
            tree,
            token_ids=tree.token_ids[:kept],
            parents=tree.parents[:kept],
            scores=tree.scores[:kept],
            ranks=tree.ranks[:kept],
            draft_log_probs=tree.draft_log_probs[:kept],
        )

"""The best-first tree of the factorised draft, and two cuts of it."""

from dataclasses import dataclass

from kdnb.draft import Draft
from kdnb.policies.base import check_node_budget
from kdnb.reference.tree_build import tree_build
from kdnb.tree import DraftTree


@dataclass(frozen=True)
class DDTree:
    """The node_budget most probable prefixes: the tree that maximises the expected acceptance.

    Args:
        spine: Keep the whole chain of best tokens first, as far as the budget goes, and spend the rest
            best-first. For drafts whose marginals rate deep tokens too low. The nodes are in the same
            order as without: by (-score, rank tuple).
    Source: Ringel & Romano 2026 (arXiv:2604.12989), algorithm 1.
    """

    spine: bool = False

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        ids, log_probs = draft.top_k(node_budget)
        spine = draft.max_depth if self.spine else 0
        return tree_build(ids, log_probs, node_budget, draft.root_id, spine=spine)

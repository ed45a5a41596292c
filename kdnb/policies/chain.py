"""The single path of best tokens."""

from dataclasses import dataclass

from kdnb.draft import Draft
from kdnb.policies.base import check_node_budget
from kdnb.reference.tree_build import tree_build
from kdnb.tree import DraftTree


@dataclass(frozen=True)
class Chain:
    """The best token of each depth, as deep as the draft and the budget go: plain speculation."""

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        ids, log_probs = draft.top_k(1)
        return tree_build(ids, log_probs, min(node_budget, draft.max_depth), draft.root_id)

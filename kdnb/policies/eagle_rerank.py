"""Expand a beam depth by depth, then keep the best of all."""

from dataclasses import dataclass

from kdnb.arrays import check_integer
from kdnb.draft import Draft
from kdnb.policies.base import check_node_budget
from kdnb.reference.tree_build import Node, tree_of
from kdnb.tree import DraftTree


@dataclass(frozen=True)
class EagleRerank:
    """EAGLE-2's expand and rerank, applied to marginals. This is not EAGLE itself.

    EAGLE drafts each depth with the tokens above it known; here every depth has one distribution. Per
    depth the `top_k` best nodes each get their `top_k` best children; the best node_budget of all nodes
    make the tree. It misses prefixes that DDTree finds where a good one leaves the beam.

    Args:
        top_k: Width of the beam, 1 or more.

    Raises:
        ConfigError: if it is less.
    Source: Li et al. 2024 (arXiv:2406.16858), expansion and reranking.
    """

    top_k: int = 10

    def __post_init__(self) -> None:
        check_integer("top_k", self.top_k, 1)

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        ids, log_probs = draft.top_k(self.top_k)
        values = log_probs.tolist()
        beam: list[Node] = [(0.0, ())]
        found: list[Node] = []
        for depth in range(draft.max_depth):
            children = [
                (negative - value, (*ranks, rank))
                for negative, ranks in beam
                for rank, value in enumerate(values[depth])
            ]
            found += children
            beam = sorted(children)[: self.top_k]
        return tree_of(sorted(found)[:node_budget], ids, log_probs, draft.root_id)

"""What a tree policy is, and what the loop checks of the trees it returns."""

from typing import Protocol, runtime_checkable

import numpy as np

from kdnb.arrays import check_integer
from kdnb.draft import Draft
from kdnb.errors import PolicyError
from kdnb.tree import DraftTree


@runtime_checkable
class TreePolicy(Protocol):
    """Turns a draft into a tree; which tree never changes the text, only how fast it comes."""

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build a tree.

        Args:
            draft: The drafter's marginals; `draft.root_id` is the root.
            node_budget: Drafted nodes allowed, the root not counted; 0 is a root-only tree.

        Returns:
            DraftTree with at most node_budget + 1 nodes.
        """


def check_node_budget(node_budget: int) -> None:
    """Refuse a budget that is not an integer from 0 up (ConfigError)."""
    check_integer("node_budget", node_budget, 0)


def check_tree(tree: object, root_id: int, node_budget: int, vocab_size: int) -> None:
    """Refuse a tree that the loop cannot verify.

    Args:
        tree: What a policy or drafter returned.
        root_id: The last emitted token.
        node_budget: Drafted nodes allowed.
        vocab_size: The target's.

    Raises:
        PolicyError: if it is no DraftTree, has another root, too many nodes, or an unknown token.
    """
    if not isinstance(tree, DraftTree):
        raise PolicyError(f"the policy returned {type(tree).__name__}; return a DraftTree.")
    if int(tree.token_ids[0]) != root_id:
        raise PolicyError(
            f"the tree's root is token {int(tree.token_ids[0])} but the last emitted token is "
            f"{root_id}; build the tree below draft.root_id."
        )
    if tree.num_nodes - 1 > node_budget:
        raise PolicyError(
            f"the tree drafts {tree.num_nodes - 1} nodes but node_budget is {node_budget} "
            "(the root is not counted); return fewer."
        )
    wrong = np.flatnonzero((tree.token_ids < 0) | (tree.token_ids >= vocab_size))
    if wrong.size:
        node = int(wrong[0])
        raise PolicyError(
            f"node {node} is token {int(tree.token_ids[node])} but ids of this model go from 0 to "
            f"{vocab_size - 1}."
        )

"""Following the target's own choices down the tree."""

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import HostArray
from kdnb.errors import ShapeError, TokenError
from kdnb.tree import DraftTree


def accept(tree: DraftTree, next_ids: HostArray) -> Acceptance:
    """Follow the target's choice after each node until it leaves the tree.

    Args:
        tree: Draft tree; node 0 is the root.
        next_ids: int [num_nodes]; the target's choice after each node.

    Returns:
        Acceptance with the kept nodes, root first, and the first choice outside the tree as bonus.

    Raises:
        ShapeError: if next_ids and tree disagree on the node count.
        TokenError: if a choice is negative.
    Exact: integer op; every backend must agree bit for bit.
    Source: Ringel & Romano 2026 (arXiv:2604.12989), verification step.
    """
    chosen = np.asarray(next_ids)
    if chosen.shape != (tree.num_nodes,):
        raise ShapeError(
            f"next_ids has shape {list(chosen.shape)} but the tree has {tree.num_nodes} nodes "
            "(root included); pass one id per node."
        )
    if not np.issubdtype(chosen.dtype, np.integer):
        raise ShapeError(f"next_ids has dtype {chosen.dtype}; it must hold token ids.")
    wrong = np.flatnonzero(chosen < 0)
    if wrong.size:
        raise TokenError(f"next_ids[{int(wrong[0])}] is {int(chosen[wrong[0]])}; token ids are 0 or more.")
    accepted = [0]
    while True:
        wanted = int(chosen[accepted[-1]])
        for child in tree.children[accepted[-1]]:
            if int(tree.token_ids[child]) == wanted:
                accepted.append(child)
                break
        else:
            return Acceptance(
                accepted=np.array(accepted, dtype=np.int32),
                bonus_id=wanted,
                next_ids=chosen.astype(np.int32),
            )

"""Best-first draft tree from per-depth marginals."""

import heapq

import numpy as np

from kdnb.arrays import Float32, Int32
from kdnb.tree import DraftTree

Node = tuple[float, tuple[int, ...]]  # -score and rank tuple: sorting gives the contract's order


def tree_build(
    top_ids: Int32, top_log_probs: Float32, node_budget: int, root_id: int, *, spine: int = 0
) -> DraftTree:
    """Take the `node_budget` most probable prefixes of the factorised draft distribution.

    Args:
        top_ids: int32 [max_depth, k]; each depth's best tokens, descending.
        top_log_probs: float32 [max_depth, k]; their log-probs.
        node_budget: Drafted nodes, the root not counted.
        root_id: Token of the root.
        spine: Take this many nodes of the all-rank-0 path first, whatever their score.

    Returns:
        DraftTree; nodes sorted by (-score, rank tuple), score = float64 sum of the float32 log-probs
        from the root down, equal scores to the lexicographically smaller rank tuple.
    Exact: every backend must give the same nodes in the same order.
    Cost: O(node_budget log node_budget); k = min(node_budget, vocab_size) is enough.
    Source: Ringel & Romano 2026 (arXiv:2604.12989), algorithm 1. A node's parent and its better
        sibling always sort before it, so popping a heap yields the sorted order.
    """
    max_depth, k = top_ids.shape
    log_probs = top_log_probs.tolist()
    heap: list[tuple[float, tuple[int, ...], float]] = []  # -score, ranks, score of the parent
    taken: list[Node] = []
    if max_depth and k and node_budget:
        heap.append((-log_probs[0][0], (0,), 0.0))
    forced = {(0,) * depth for depth in range(1, min(spine, max_depth, node_budget) + 1)}
    free = node_budget - len(forced)
    while heap and (free or forced):
        negative, ranks, parent_score = heapq.heappop(heap)
        if ranks in forced:
            forced.discard(ranks)
        elif free:
            free -= 1
        else:
            continue
        taken.append((negative, ranks))
        depth, rank = len(ranks), ranks[-1]
        if rank + 1 < k:
            score = parent_score + log_probs[depth - 1][rank + 1]
            heapq.heappush(heap, (-score, (*ranks[:-1], rank + 1), parent_score))
        if depth < max_depth:
            score = log_probs[depth][0] - negative
            heapq.heappush(heap, (-score, (*ranks, 0), -negative))
    return tree_of(taken, top_ids, top_log_probs, root_id)


def tree_of(nodes: list[Node], top_ids: Int32, top_log_probs: Float32, root_id: int) -> DraftTree:
    """Make a tree of rank paths.

    Args:
        nodes: -score and rank path of each node, parents before children, the root left out.
        top_ids: int32 [max_depth, k].
        top_log_probs: float32 [max_depth, k].
        root_id: Token of the root.

    Returns:
        DraftTree in the given order.
    """
    index = {(): 0} | {ranks: node for node, (_, ranks) in enumerate(nodes, start=1)}
    depths = np.array([len(ranks) for _, ranks in nodes], dtype=np.int32) - 1
    last = np.array([ranks[-1] for _, ranks in nodes], dtype=np.int32)
    return DraftTree(
        token_ids=np.concatenate([[root_id], top_ids[depths, last]]).astype(np.int32),
        parents=np.array([-1, *(index[ranks[:-1]] for _, ranks in nodes)], dtype=np.int32),
        scores=np.array([0.0, *(-negative for negative, _ in nodes)], dtype=np.float64),
        ranks=np.concatenate([[0], last]).astype(np.int32),
        draft_log_probs=np.concatenate([[0], top_log_probs[depths, last]]).astype(np.float32),
    )

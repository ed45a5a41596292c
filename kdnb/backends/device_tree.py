"""Draft trees in device memory: built from marginals, and walked by the target's choices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kdnb.backends.device import DeviceArray

if TYPE_CHECKING:
    from kdnb.backends.kernel_backend import KernelBackend

MAX_NODE_BUDGET = 1024  # of tree_build.cu
MAX_DEPTH = 32
SHARED_LIMIT = 90 << 10  # of tree_build.cu, so that every GPU since sm_80 has it
INT32 = np.dtype(np.int32)


class TreeNodes(NamedTuple):
    """Where tree_build.cu writes a tree: arrays of node_budget + 1, the root first."""

    token_ids: DeviceArray
    parents: DeviceArray
    depths: DeviceArray
    positions: DeviceArray
    ranks: DeviceArray
    scores: DeviceArray
    log_probs: DeviceArray
    visible_words: DeviceArray
    num_nodes: DeviceArray
    workspace: DeviceArray

    @classmethod
    def empty(cls, backend: "KernelBackend", node_budget: int, max_depth: int) -> "TreeNodes":
        """Room for a tree; scores and log-probs are cleared."""
        nodes = node_budget + 1
        token_ids, parents, depths, positions, ranks = (backend.empty((nodes,), INT32) for _ in range(5))
        return cls(
            token_ids=token_ids,
            parents=parents,
            depths=depths,
            positions=positions,
            ranks=ranks,
            scores=backend.zeros_of((nodes,), np.dtype(np.float64)),
            log_probs=backend.zeros_of((nodes,), np.dtype(np.float32)),
            visible_words=backend.empty((nodes, -(-nodes // 64)), np.dtype(np.uint64)),
            num_nodes=backend.empty((1,), INT32),
            workspace=backend.empty(
                (_levels_bytes(node_budget, max_depth, node_budget),), np.dtype(np.uint8)
            ),
        )

    @property
    def node_budget(self) -> int:
        """Drafted nodes at the most."""
        return len(self.token_ids) - 1


def build_tree(
    backend: "KernelBackend",
    top_ids: DeviceArray,
    top_log_probs: DeviceArray,
    root_id: DeviceArray,
    prefix_len: DeviceArray,
    nodes: TreeNodes,
) -> None:
    """kdnb.reference.tree_build of the marginals [max_depth, k] into `nodes`."""
    max_depth, k = top_ids.shape
    constants, block, shared = tree_build_shape(nodes.node_budget, max_depth, k)
    arguments = [top_ids, top_log_probs, root_id, prefix_len, *nodes]
    backend.launch("tree_build", "tree_build", (1,), arguments, constants, block=block, shared=shared)


def tree_build_shape(node_budget: int, max_depth: int, k: int) -> tuple[dict[str, Any], int, int]:
    """What tree_build.cu is specialised by, its threads and its bytes of dynamic shared memory."""
    pairs = sum(min(k, node_budget // (i + 1)) for i in range(node_budget))  # see tree_build.cu
    sort_size = 1 << max(1, (pairs - 1).bit_length())
    levels = _levels_bytes(node_budget, max_depth, k)
    in_shared = 12 * sort_size + levels <= SHARED_LIMIT
    threads = min(512 if node_budget <= 256 else 1024, max(32, sort_size // 2))
    constants = {
        "NODE_BUDGET": node_budget,
        "MAX_DEPTH": max_depth,
        "K": k,
        "SORT_SIZE": sort_size,
        "IN_SHARED": in_shared,
        "THREADS": threads,
    }
    return constants, threads, 12 * sort_size + (levels if in_shared else 0)


def accept_tree(
    backend: "KernelBackend",
    nodes: TreeNodes,
    next_ids: DeviceArray,
    accepted: DeviceArray,
    num_kept: DeviceArray,
    bonus_id: DeviceArray,
) -> None:
    """kdnb.reference.tree_accept: nodes into `accepted` [max_depth + 1], their number, the bonus token."""
    constants = {"NODE_BUDGET": nodes.node_budget, "MAX_DEPTH": len(accepted) - 1}
    arguments: Sequence[DeviceArray] = [nodes.token_ids, nodes.parents, next_ids, nodes.num_nodes, accepted]
    backend.launch("tree_accept", "tree_accept", (1,), [*arguments, num_kept, bonus_id], constants, block=256)


def _levels_bytes(node_budget: int, max_depth: int, k: int) -> int:
    """Of the nodes of every depth and one depth's log-probs, in shared memory or in the workspace."""
    return 16 * node_budget + 14 * max_depth * node_budget + 4 * max(1, k)

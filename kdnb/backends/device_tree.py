"""A draft tree on the device: fixed room for the budget's worth of nodes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kdnb.arrays import WORD_BITS
from kdnb.backends.device import DeviceArray

if TYPE_CHECKING:
    from kdnb.backends.kernel_backend import KernelBackend

SHARED_LIMIT = 90 << 10  # of tree_build.cu, so that every GPU since sm_80 has it


@dataclass(frozen=True, eq=False)
class DeviceTree:
    """What tree_build.cu writes, per node: int32 but for scores float64, log_probs float32, visible uint64."""

    num_nodes: DeviceArray
    token_ids: DeviceArray
    parents: DeviceArray
    depths: DeviceArray
    positions: DeviceArray
    ranks: DeviceArray
    scores: DeviceArray
    log_probs: DeviceArray
    visible: DeviceArray

    @classmethod
    def empty(cls, backend: "KernelBackend", nodes: int) -> "DeviceTree":
        """Room for `nodes` nodes, the root among them."""
        integers = [backend.zeros_of((size,), np.dtype(np.int32)) for size in (1, *(nodes,) * 5)]
        return cls(
            *integers,
            scores=backend.zeros_of((nodes,), np.dtype(np.float64)),
            log_probs=backend.zeros_of((nodes,), np.dtype(np.float32)),
            visible=backend.zeros_of((nodes, -(-nodes // WORD_BITS)), np.dtype(np.uint64)),
        )

    def set_root_only(self, backend: "KernelBackend") -> None:
        """Make it the tree without drafts; its token and position are written by the round."""
        backend.device.write(self.num_nodes, np.array([1], dtype=np.int32))
        backend.device.write(self.parents, np.array([-1], dtype=np.int32))


def tree_workspace(node_budget: int, max_depth: int) -> int:
    """Bytes of global memory that tree_build.cu uses where shared memory is too small."""
    return max(1, 16 * node_budget + 14 * max_depth * node_budget)


def sort_size(node_budget: int, k: int) -> int:
    """Candidates of one depth at the most, as a power of two; see tree_build.cu."""
    pairs = sum(min(k, node_budget // (i + 1)) for i in range(node_budget))
    return 1 << max(1, (pairs - 1).bit_length())

"""The draft tree: proposed tokens below the last emitted one, and who may see whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from kdnb.arrays import Bool, Float32, Float64, HostArray, Int32, UInt64, pack_visible
from kdnb.errors import ShapeError

UNKNOWN_ROOT = -1  # root id of a tree built without one


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Nodes in order: the root at index 0, every parent before its children.

    Args:
        token_ids: int32 [num_nodes]; the root's is -1 where it is not known.
        parents: int32 [num_nodes]; root -1, otherwise parents[i] < i.
        scores: float64 [num_nodes] or None; sum of draft log-probs from the root down (nats), root 0.
        ranks: int32 [num_nodes] or None; place of the token in its depth's list of best tokens, root 0.
        draft_log_probs: float32 [num_nodes] or None; log-prob of each node's own token, root 0.
        sampled_from: float32 [max_depth, vocab_size] or None; the probabilities that each depth's
            children were drawn from, without replacement (drafters that sample).

    Raises:
        ShapeError: if the arrays do not make a tree; the message names the node.
    """

    token_ids: Int32
    parents: Int32
    scores: Float64 | None = None
    ranks: Int32 | None = None
    draft_log_probs: Float32 | None = None
    sampled_from: Float32 | None = None

    def __post_init__(self) -> None:
        token_ids = np.asarray(self.token_ids)
        if token_ids.ndim != 1 or token_ids.size == 0:
            raise ShapeError(
                f"token_ids has shape {list(token_ids.shape)}; pass one id per node, root first."
            )
        kinds = {"token_ids": np.int32, "parents": np.int32, "scores": np.float64,
                 "ranks": np.int32, "draft_log_probs": np.float32}  # fmt: skip
        for name, dtype in kinds.items():
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value)
            if array.shape != token_ids.shape:
                raise ShapeError(
                    f"{name} has shape {list(array.shape)} but the tree has {token_ids.size} nodes "
                    "(root included); pass one value per node."
                )
            if np.issubdtype(dtype, np.integer) and not np.issubdtype(array.dtype, np.integer):
                raise ShapeError(f"{name} has dtype {array.dtype}; it must hold integers.")
            object.__setattr__(self, name, array.astype(dtype, copy=False))
        _check_parents(self.parents)
        _check_siblings(self.token_ids, self.parents)

    def __repr__(self) -> str:
        return f"DraftTree(num_nodes={self.num_nodes}, max_depth={self.max_depth})"

    def __str__(self) -> str:
        from kdnb.view.text import draw_tree

        return draw_tree(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from kdnb.view.svg import tree_svg

        return {"image/svg+xml": tree_svg(self), "text/plain": str(self)}

    @classmethod
    def from_parents(
        cls,
        token_ids: Sequence[int] | HostArray,
        parents: Sequence[int] | HostArray,
        log_probs: Sequence[float] | HostArray | None = None,
    ) -> "DraftTree":
        """Make a tree from plain lists.

        Args:
            token_ids: [num_nodes], root first.
            parents: [num_nodes], root -1.
            log_probs: [num_nodes] draft log-prob of each node's own token (the root's is ignored), or
                None.

        Returns:
            DraftTree; with scores if log_probs are given.

        Raises:
            ShapeError: as the class.
        """
        tree = cls(np.asarray(token_ids), np.asarray(parents))
        if log_probs is None:
            return tree
        own = np.array(log_probs, dtype=np.float32)
        if own.shape != tree.token_ids.shape:
            raise ShapeError(
                f"log_probs has shape {list(own.shape)} but the tree has {tree.num_nodes} nodes "
                "(root included); pass one value per node."
            )
        own[0] = 0
        scores = np.zeros(tree.num_nodes, dtype=np.float64)
        for node in range(1, tree.num_nodes):
            scores[node] = scores[tree.parents[node]] + float(own[node])
        return replace(tree, scores=scores, draft_log_probs=own)

    @classmethod
    def root_only(cls, root_id: int = UNKNOWN_ROOT) -> "DraftTree":
        """A tree without drafts: verifying it is plain decoding."""
        zero = np.zeros(1, dtype=np.int32)
        return cls(
            token_ids=np.array([root_id], dtype=np.int32),
            parents=np.array([-1], dtype=np.int32),
            scores=np.zeros(1, dtype=np.float64),
            ranks=zero,
            draft_log_probs=np.zeros(1, dtype=np.float32),
        )

    def with_root(self, root_id: int) -> "DraftTree":
        """The same tree below another root token."""
        token_ids = self.token_ids.copy()
        token_ids[0] = root_id
        return replace(self, token_ids=token_ids)

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.token_ids)

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node; 0 for the root alone."""
        return int(self.depths.max())

    @property
    def is_chain(self) -> bool:
        """Whether every node has at most one child."""
        return bool((self.parents == np.arange(-1, self.num_nodes - 1)).all())

    @cached_property
    def depths(self) -> Int32:
        """int32 [num_nodes]; edges from the root. A node's position is prefix_len + depth."""
        depths = np.zeros(self.num_nodes, dtype=np.int32)
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            depths[node] = depths[parent] + 1
        return depths

    @cached_property
    def visible(self) -> Bool:
        """Bool [num_nodes, num_nodes]; a row sees its ancestors and itself."""
        visible = np.eye(self.num_nodes, dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            visible[node, :node] = visible[parent, :node]
        return visible

    @cached_property
    def visible_words(self) -> UInt64:
        """uint64 [num_nodes, ceil(num_nodes / 64)]; `visible` packed, see arrays.pack_visible."""
        return pack_visible(self.visible)

    @cached_property
    def children(self) -> list[list[int]]:
        """Child nodes of every node, in node order."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            children[parent].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`, both included."""
        path = [node]
        while path[-1] != 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def to_json(self) -> dict[str, Any]:
        """Plain lists; fields that are not known are absent."""
        data: dict[str, Any] = {
            "token_ids": self.token_ids.tolist(),
            "parents": self.parents.tolist(),
            "depths": self.depths.tolist(),
        }
        for name in ("scores", "ranks", "draft_log_probs"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value.tolist()
        return data

    def to_sglang(self) -> tuple[Int32, Int32, Int32]:
        """The form of SGLang's verify kernels, for one sequence.

        Returns:
            retrieve_index (node numbers), retrieve_next_token (first child of each node) and
            retrieve_next_sibling, each int32 [num_nodes] with -1 for none.
        """
        first = np.full(self.num_nodes, -1, dtype=np.int32)
        sibling = np.full(self.num_nodes, -1, dtype=np.int32)
        for node, children in enumerate(self.children):
            for left, right in pairwise(children):
                sibling[left] = right
            if children:
                first[node] = children[0]
        return np.arange(self.num_nodes, dtype=np.int32), first, sibling

    @classmethod
    def from_sglang(
        cls,
        token_ids: Sequence[int] | HostArray,
        retrieve_next_token: Sequence[int] | HostArray,
        retrieve_next_sibling: Sequence[int] | HostArray,
    ) -> "DraftTree":
        """Undo `to_sglang`.

        Raises:
            ShapeError: if the pointers do not reach every node exactly once.
        """
        first, sibling = np.asarray(retrieve_next_token), np.asarray(retrieve_next_sibling)
        parents = np.full(len(token_ids), -2, dtype=np.int32)
        if len(first) != len(parents) or len(sibling) != len(parents):
            raise ShapeError(
                f"retrieve_next_token has {len(first)} and retrieve_next_sibling {len(sibling)} entries "
                f"but there are {len(parents)} tokens."
            )
        parents[:1] = -1
        for node in range(len(parents)):
            child = int(first[node])
            while child != -1:
                if not 0 < child < len(parents) or parents[child] != -2:
                    raise ShapeError(f"node {node}: its pointers reach node {child} twice or not at all.")
                parents[child] = node
                child = int(sibling[child])
        lost = np.flatnonzero(parents == -2)
        if lost.size:
            raise ShapeError(f"node {int(lost[0])} is reached by no pointer.")
        return cls(np.asarray(token_ids), parents)

    def to_ddtree(self) -> dict[str, list[float]]:
        """The form of the DDTree reference code: the root is left out of all but `parents`."""
        data: dict[str, list[float]] = {
            "node_token_ids": self.token_ids[1:].tolist(),
            "node_depths": self.depths[1:].tolist(),
            "parents": self.parents.tolist(),
        }
        if self.scores is not None:
            data["node_scores"] = self.scores[1:].tolist()
        return data

    @classmethod
    def from_ddtree(cls, data: Mapping[str, Any], root_id: int = UNKNOWN_ROOT) -> "DraftTree":
        """Undo `to_ddtree`; `root_token` in the data goes before `root_id`.

        Raises:
            ShapeError: if a field is missing, or node_depths contradict parents.
        """
        for name in ("node_token_ids", "parents"):
            if name not in data:
                raise ShapeError(f"the tree has no {name}; is it in the DDTree reference's form?")
        root = data.get("root_token", root_id)
        scores = data.get("node_scores")
        tree = cls(
            np.array([root, *data["node_token_ids"]]),
            np.array(data["parents"]),
            None if scores is None else np.array([0.0, *scores]),
        )
        depths = data.get("node_depths")
        if depths is not None and tree.depths[1:].tolist() != list(depths):
            raise ShapeError("node_depths contradict parents; the root must not be counted in them.")
        return tree

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "DraftTree":
        """Undo `to_json`; `depths` is not read, parents decide."""
        optional = {
            name: None if data.get(name) is None else np.array(data[name])
            for name in ("scores", "ranks", "draft_log_probs")
        }
        return cls(np.array(data["token_ids"]), np.array(data["parents"]), **optional)


def _check_parents(parents: Int32) -> None:
    if parents[0] != -1:
        raise ShapeError(f"node 0: parent {parents[0]}; the root comes first and its parent is -1.")
    late = np.flatnonzero(parents[1:] >= np.arange(1, len(parents)))
    if late.size:
        node = int(late[0]) + 1
        raise ShapeError(f"node {node}: parent {parents[node]} >= {node}; parents must precede children.")
    orphans = np.flatnonzero(parents[1:] < 0)
    if orphans.size:
        node = int(orphans[0]) + 1
        raise ShapeError(f"node {node}: parent {parents[node]}; only the root has no parent.")


def _check_siblings(token_ids: Int32, parents: Int32) -> None:
    seen: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(parents.tolist(), token_ids.tolist(), strict=True)):
        first = seen.setdefault(key, node)
        if first != node:
            raise ShapeError(
                f"nodes {first} and {node} are both token {key[1]} below node {key[0]}; siblings must differ."
            )

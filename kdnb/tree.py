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

    A tree never changes: its arrays are read-only.

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
            if dtype is np.int32 and array.dtype != np.int32:
                _check_integers(name, array)
            object.__setattr__(self, name, _frozen(array, dtype))
        _check_parents(self.parents)
        _check_tokens(self.token_ids)
        _check_siblings(self.token_ids, self.parents)
        if self.sampled_from is not None:
            probs = np.asarray(self.sampled_from)
            if probs.ndim != 2 or len(probs) < self.max_depth:
                raise ShapeError(
                    f"sampled_from has shape {list(probs.shape)} but the tree is {self.max_depth} deep; "
                    "it must be [max_depth, vocab_size]."
                )
            object.__setattr__(self, "sampled_from", _frozen(probs, np.float32))

    def __repr__(self) -> str:
        return f"DraftTree(num_nodes={self.num_nodes}, max_depth={self.max_depth})"

    def __str__(self) -> str:
        from kdnb.view.text import draw_tree

        return draw_tree(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from kdnb.view import bundle

        return bundle(self)

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
        depths.flags.writeable = False
        return depths

    @cached_property
    def visible(self) -> Bool:
        """Bool [num_nodes, num_nodes]; a row sees its ancestors and itself."""
        visible = np.eye(self.num_nodes, dtype=np.bool_)
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            visible[node, :node] = visible[parent, :node]
        visible.flags.writeable = False
        return visible

    @cached_property
    def visible_words(self) -> UInt64:
        """uint64 [num_nodes, ceil(num_nodes / 64)]; `visible` packed, see arrays.pack_visible."""
        words = pack_visible(self.visible)
        words.flags.writeable = False
        return words

    @cached_property
    def children(self) -> list[list[int]]:
        """Child nodes of every node, in node order."""
        children: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            children[parent].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to `node`, both included.

        Raises:
            ShapeError: if there is no such node.
        """
        if not 0 <= node < self.num_nodes:
            raise ShapeError(f"node {node} is not in the tree; its nodes are 0 to {self.num_nodes - 1}.")
        path = [int(node)]
        while path[-1] != 0:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def to_json(self) -> dict[str, Any]:
        """Plain lists; fields that are not known are absent, a log-prob of minus infinity is None."""
        data: dict[str, Any] = {
            "token_ids": self.token_ids.tolist(),
            "parents": self.parents.tolist(),
            "depths": self.depths.tolist(),
        }
        for name in ("scores", "ranks", "draft_log_probs"):
            value = getattr(self, name)
            if value is not None:
                data[name] = [None if entry == -np.inf else entry for entry in value.tolist()]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "DraftTree":
        """Undo `to_json`.

        Raises:
            ShapeError: if a field is missing or no list of numbers, or depths contradict parents.
        """
        _check_fields(data, ("token_ids", "parents"), "is it what DraftTree.to_json made?")
        ints = {name: _numbers(data, name, None) for name in ("token_ids", "parents", "ranks")}
        floats = {name: _numbers(data, name, np.float64) for name in ("scores", "draft_log_probs")}
        tree = cls(**ints, **floats)
        _check_depths(tree, data.get("depths"), "depths", start=0)
        return tree

    def to_sglang(self) -> tuple[Int32, Int32, Int32]:
        """The form of SGLang's verify kernels, for one sequence.

        Returns:
            retrieve_index (node numbers), retrieve_next_token (first child of each node) and
            retrieve_next_sibling, each int32 [num_nodes] with -1 for none. Siblings are linked in node
            order; other orders that SGLang allows mean the same tree.
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
        parents = np.full(len(token_ids), -2, dtype=np.int32)  # -2: not reached yet
        if len(first) != len(parents) or len(sibling) != len(parents):
            raise ShapeError(
                f"retrieve_next_token has {len(first)} and retrieve_next_sibling {len(sibling)} entries "
                f"but there are {len(parents)} tokens."
            )
        parents[:1] = -1
        for node in range(len(parents)):
            child = int(first[node])
            while child != -1:
                if not 0 < child < len(parents):
                    raise ShapeError(
                        f"node {node}: its pointers lead to node {child}, but a child is one of 1 to "
                        f"{len(parents) - 1}."
                    )
                if parents[child] != -2:
                    raise ShapeError(f"node {node}: its pointers reach node {child} twice.")
                parents[child] = node
                child = int(sibling[child])
        lost = np.flatnonzero(parents == -2)
        if lost.size:
            raise ShapeError(f"node {int(lost[0])} is reached by no pointer.")
        return cls(np.asarray(token_ids), parents)

    def to_ddtree(self) -> dict[str, Any]:
        """The form of the DDTree reference code: the root is left out of all lists but `parents`."""
        data: dict[str, Any] = {
            "root_token": int(self.token_ids[0]),
            "node_token_ids": self.token_ids[1:].tolist(),
            "node_depths": self.depths[1:].tolist(),
            "parents": self.parents.tolist(),
        }
        if self.scores is not None:
            data["node_scores"] = self.scores[1:].tolist()
        return data

    @classmethod
    def from_ddtree(cls, data: Mapping[str, Any], root_id: int = UNKNOWN_ROOT) -> "DraftTree":
        """Undo `to_ddtree`.

        Args:
            data: `node_token_ids` and `parents`; `root_token`, `node_depths` and `node_scores` if known.
            root_id: The root's token where the data has no `root_token`.

        Raises:
            ShapeError: if a field is missing or no list of numbers, or node_depths contradict parents.
        """
        _check_fields(data, ("node_token_ids", "parents"), "is it in the DDTree reference's form?")
        ids = _numbers(data, "node_token_ids", None)
        scores = _numbers(data, "node_scores", np.float64)
        tree = cls(
            token_ids=np.array([data.get("root_token", root_id), *ids.tolist()]),
            parents=_numbers(data, "parents", None),
            scores=None if scores is None else np.concatenate([[0.0], scores]),
        )
        _check_depths(tree, data.get("node_depths"), "node_depths", start=1)
        return tree


def _frozen(array: HostArray, dtype: Any) -> HostArray:
    """Read-only, and a copy where it was not, so that no later change to an array changes a tree."""
    if array.flags.writeable or array.dtype != dtype:
        array = np.array(array, dtype=dtype)
        array.flags.writeable = False
    return array


def _numbers(data: Mapping[str, Any], name: str, dtype: Any) -> Any:
    """One list of a JSON object as an array, None where it is absent; None in it is minus infinity."""
    if data.get(name) is None:
        return None
    try:
        values = [-np.inf if value is None else value for value in data[name]]
        return np.array(values, dtype=dtype if values else np.int32)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(f"{name} must be a list of numbers.") from None


def _check_fields(data: object, names: Sequence[str], hint: str) -> None:
    if not isinstance(data, Mapping):
        raise ShapeError(f"the tree is a {type(data).__name__}; it must be a JSON object.")
    for name in names:
        if data.get(name) is None:
            raise ShapeError(f"the tree has no {name}; {hint}")


def _check_depths(tree: DraftTree, depths: Any, name: str, start: int) -> None:
    if depths is None:
        return
    ours = tree.depths[start:].tolist()
    if list(depths) != ours:
        raise ShapeError(f"{name} contradict parents: they are {list(depths)} but parents mean {ours}.")


def _check_integers(name: str, array: HostArray) -> None:
    if not np.issubdtype(array.dtype, np.integer):
        raise ShapeError(f"{name} has dtype {array.dtype}; it must hold integers.")
    limits = np.iinfo(np.int32)
    wide = np.flatnonzero((array < limits.min) | (array > limits.max))
    if wide.size:
        raise ShapeError(f"node {int(wide[0])}: {name} is {int(array[wide[0]])}, which is no int32.")


def _check_tokens(token_ids: Int32) -> None:
    if token_ids[0] < UNKNOWN_ROOT or token_ids[1:].min(initial=0) < 0:
        wrong = np.flatnonzero(token_ids < np.where(np.arange(len(token_ids)), 0, UNKNOWN_ROOT))
        raise ShapeError(
            f"node {int(wrong[0])}: token id {int(token_ids[wrong[0]])}; token ids are 0 or more "
            "(the root's is -1 where it is not known)."
        )


def _check_parents(parents: Int32) -> None:
    if parents[0] != -1:
        raise ShapeError(f"node 0: parent {parents[0]}; the root comes first and its parent is -1.")
    if len(parents) == 1:
        return
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

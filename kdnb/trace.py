"""What one round did: the record that views, files and tests read."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kdnb.arrays import WORD_BITS, Float32, HostArray, Int32, UInt64
from kdnb.errors import KdnbError, TraceError
from kdnb.tree import DraftTree

FORMAT_VERSION = 1
REQUIRED = ("prefix_len", "token_ids", "parents", "accepted", "bonus_id")
TEXTS = ("policy", "verify_rule")
ARRAYS: dict[str, tuple[Any, int]] = {  # optional arrays: dtype and axes
    "next_ids": (np.int32, 1),
    "target_log_prob": (np.float32, 1),
    "cache_row": (np.int32, 1),
    "draft_top_ids": (np.int32, 2),
    "draft_top_log_probs": (np.float32, 2),
    "target_top_ids": (np.int32, 2),
    "target_top_log_probs": (np.float32, 2),
}
PER_NODE = ("next_ids", "target_log_prob", "cache_row", "target_top_ids", "target_top_log_probs")
ROUND_NAMES = {"ranks": "rank", "draft_log_probs": "draft_log_prob"}  # as a round writes the tree's
TREE_NAMES = {theirs: ours for ours, theirs in ROUND_NAMES.items()}
TREE_FLOATS: dict[str, Any] = {"scores": np.float64, "draft_log_probs": np.float32}
STAGES = ("draft", "build", "verify", "accept", "compact")  # in the order of one round


@dataclass(frozen=True, eq=False)
class RoundTrace:
    """One round of draft-tree decoding.

    The light trace has the fields without a default. The full trace adds the rest; a field that
    was not recorded is None here and absent from JSON.

    Args:
        prefix_len: Committed cache rows when the round began; the root's position.
        tree: The draft tree; node 0 is the root.
        next_ids: int32 [num_nodes]; the target's choice after each node (None if the rule has none).
        accepted: int32 [num_emitted]; node indices of the kept path, root first.
        bonus_id: Token drawn after the last kept node.
        emitted: int32; the tokens this round really added to the output: the accepted drafts, then the
            bonus token, cut at a stop id or at max_new_tokens in the last round.
        times_us: Microseconds per stage, keys from STAGES.
        min_gap: Smallest margin of a choice on the kept path (see Acceptance.min_gap).
        policy: Name of the tree policy (repr of the object).
        verify_rule: Name of the verify rule (repr of the object).
        target_log_prob: float32 [num_nodes]; target log-prob of each node's token after its parent; root 0.
        cache_row: int32 [num_nodes]; the cache row verify wrote for each node.
        draft_top_ids: int32 [max_depth, k]; the drafter's best ids, k = min(node_budget, vocab_size).
        draft_top_log_probs: float32 [max_depth, k]; their log-probs.
        target_top_ids: int32 [num_nodes, k]; per node the target's best ids (k = 8 or vocab_size).
        target_top_log_probs: float32 [num_nodes, k].
        visible_words: uint64 [num_nodes, words]; the packed mask the backend was given.
    """

    prefix_len: int
    tree: DraftTree
    next_ids: Int32 | None
    accepted: Int32
    bonus_id: int
    emitted: Int32
    times_us: Mapping[str, float] = field(default_factory=dict)
    min_gap: float | None = None
    policy: str | None = None
    verify_rule: str | None = None
    target_log_prob: Float32 | None = None
    cache_row: Int32 | None = None
    draft_top_ids: Int32 | None = None
    draft_top_log_probs: Float32 | None = None
    target_top_ids: Int32 | None = None
    target_top_log_probs: Float32 | None = None
    visible_words: UInt64 | None = None

    def __repr__(self) -> str:
        return (
            f"RoundTrace(prefix_len={self.prefix_len}, num_nodes={self.tree.num_nodes}, "
            f"num_accepted={self.num_accepted}, bonus_id={self.bonus_id})"
        )

    def __str__(self) -> str:
        from kdnb.view.text import draw_round

        return draw_round(self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from kdnb.view import bundle

        return bundle(self)

    @property
    def num_accepted(self) -> int:
        """Drafted nodes kept."""
        return len(self.accepted) - 1

    @property
    def num_emitted(self) -> int:
        """Tokens the round yields: the accepted drafts and the bonus token."""
        return len(self.accepted)

    @property
    def draft_log_prob(self) -> Float32 | None:
        """float32 [num_nodes]; draft log-prob of each node's own token, root 0 (the tree's)."""
        return self.tree.draft_log_probs

    @property
    def rank(self) -> Int32 | None:
        """int32 [num_nodes]; place of the token among its depth's best, root 0 (the tree's)."""
        return self.tree.ranks

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the tree's fields beside the round's; what was not recorded is absent.

        The log-prob of a token of probability 0 is null, since JSON has no infinity; an infinite
        min_gap (only one token could be drawn) is absent. visible_words holds, per row, one string of
        16 hexadecimal digits per word.

        Raises:
            TraceError: if a value is NaN.
        """
        tree = self.tree.to_json()
        for name in TREE_FLOATS:
            if name in tree:
                tree[name] = _finite(name, getattr(self.tree, name))
        data: dict[str, Any] = {
            "prefix_len": self.prefix_len,
            **{ROUND_NAMES.get(name, name): values for name, values in tree.items()},
            "accepted": self.accepted.tolist(),
            "bonus_id": self.bonus_id,
            "emitted": self.emitted.tolist(),
        }
        if self.times_us:
            data["times_us"] = dict(self.times_us)
        if self.min_gap is not None and np.isfinite(self.min_gap):
            data["min_gap"] = float(self.min_gap)
        for name in TEXTS:
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        for name in ARRAYS:
            if getattr(self, name) is not None:
                data[name] = _finite(name, getattr(self, name))
        if self.visible_words is not None:
            data["visible_words"] = [[f"{word:016x}" for word in row] for row in self.visible_words.tolist()]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RoundTrace":
        """Undo `to_json`. `depths` is not read: parents decide; `emitted` may be absent.

        Raises:
            TraceError: if a field is missing or cannot be used; the message names it.
        """
        if not isinstance(data, Mapping):
            raise TraceError(f"the round has type {type(data).__name__}; it must be a JSON object.")
        data = {TREE_NAMES.get(name, name): value for name, value in data.items()}
        absent = [name for name in REQUIRED if name not in data]
        if absent:
            raise TraceError(f"the round has no {', no '.join(absent)}.")
        tree = _read_tree(data)
        accepted = read_array(data, "accepted", np.int32)
        _check_path(tree, accepted)
        bonus_id = int(read_array(data, "bonus_id", np.int32, axes=0))
        path = tree.token_ids[accepted[1:]].tolist()
        arrays = {
            name: read_array(data, name, dtype, axes)
            for name, (dtype, axes) in ARRAYS.items()
            if name in data
        }
        for name in PER_NODE:
            value = arrays.get(name)
            if value is not None and len(value) != tree.num_nodes:
                raise TraceError(
                    f"{name} has {len(value)} rows but the tree has {tree.num_nodes} nodes (root included)."
                )
        times_us = data.get("times_us", {})
        if not isinstance(times_us, Mapping) or not all(_is_number(us) for us in times_us.values()):
            raise TraceError("times_us must hold a number of microseconds per stage.")
        min_gap = data.get("min_gap")
        if min_gap is not None and not _is_number(min_gap):
            raise TraceError(f"min_gap is {min_gap!r}; it must be a number.")
        for name in TEXTS:
            if not isinstance(data.get(name, ""), str):
                raise TraceError(f"{name} is {data[name]!r}; it must be a string.")
        return cls(
            prefix_len=int(read_array(data, "prefix_len", np.int32, axes=0)),
            tree=tree,
            accepted=accepted,
            bonus_id=bonus_id,
            emitted=read_array({"emitted": [*path, bonus_id], **data}, "emitted", np.int32),
            times_us={str(stage): float(us) for stage, us in times_us.items()},
            min_gap=None if min_gap is None else float(min_gap),
            policy=data.get("policy"),
            verify_rule=data.get("verify_rule"),
            visible_words=_read_words(data, tree.num_nodes),
            **{"next_ids": None, **arrays},
        )


def read_array(data: Mapping[str, Any], name: str, dtype: Any, axes: int = 1) -> HostArray:
    """One array of a JSON object.

    Args:
        data: The object.
        name: Its key.
        dtype: numpy dtype; an integer dtype takes whole numbers only, a float dtype reads null as
            minus infinity.
        axes: Axes the array must have; 0 is a single number.

    Returns:
        The array.

    Raises:
        TraceError: if the value is of another kind, ragged, or out of the dtype's range.
    """
    kind = "whole numbers" if np.issubdtype(dtype, np.integer) else "numbers"
    shape = ("a", "a list of", "equally long lists of")[axes]
    expected = f"{shape} {kind if axes else kind.removesuffix('s')}"
    try:
        array = np.array(data[name], dtype=object)
    except ValueError:  # ragged
        raise TraceError(f"{name} must be {expected}.") from None
    values = array.ravel().tolist()
    if kind == "numbers":
        good = all(value is None or _is_number(value) for value in values)
        values = [-np.inf if value is None else value for value in values]
    else:
        good = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    empty = array.size == 0 and array.ndim <= axes
    if not good or (array.ndim != axes and not empty):
        raise TraceError(f"{name} must be {expected}.")
    try:
        return np.array(values, dtype=dtype).reshape(array.shape if not empty else (0,) * axes)
    except OverflowError:
        raise TraceError(f"{name} holds a number that does not fit into {np.dtype(dtype)}.") from None


def _read_tree(data: Mapping[str, Any]) -> DraftTree:
    fields: dict[str, HostArray] = {
        "token_ids": read_array(data, "token_ids", np.int32),
        "parents": read_array(data, "parents", np.int32),
    }
    if "ranks" in data:
        fields["ranks"] = read_array(data, "ranks", np.int32)
    for name, dtype in TREE_FLOATS.items():
        if name in data:
            fields[name] = read_array(data, name, dtype)
    try:
        return DraftTree(**fields)
    except KdnbError as error:
        raise TraceError(str(error)) from None


def _check_path(tree: DraftTree, accepted: Int32) -> None:
    path = accepted.tolist()
    if not path or path[0] != 0:
        raise TraceError(f"accepted is {path}; it must start at the root, node 0.")
    for above, below in pairwise(path):
        if not 0 < below < tree.num_nodes:
            raise TraceError(f"accepted is {path} but the tree has nodes 0 to {tree.num_nodes - 1}.")
        if int(tree.parents[below]) != above:
            raise TraceError(
                f"accepted goes from node {above} to node {below}, whose parent is "
                f"{int(tree.parents[below])}; it must be a path from the root down."
            )


def _read_words(data: Mapping[str, Any], num_nodes: int) -> UInt64 | None:
    rows = data.get("visible_words")
    if rows is None:
        return None
    width = -(-num_nodes // WORD_BITS)
    good = isinstance(rows, list) and len(rows) == num_nodes
    if not good or not all(isinstance(row, list) and len(row) == width for row in rows):
        raise TraceError(f"visible_words must hold {num_nodes} rows of {width} words each.")
    for node, row in enumerate(rows):
        for word in row:
            if not isinstance(word, str) or not re.fullmatch("[0-9a-f]{16}", word):
                raise TraceError(
                    f"visible_words[{node}] holds {word!r}; a word is a string of 16 hexadecimal digits."
                )
    return np.array([[int(word, 16) for word in row] for row in rows], dtype=np.uint64)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN


def _finite(name: str, array: HostArray) -> Any:
    """Nested lists in which minus infinity is None: JSON has no infinity."""
    if not np.issubdtype(array.dtype, np.floating) or np.isfinite(array).all():
        return array.tolist()
    if (np.isnan(array) | (array == np.inf)).any():
        raise TraceError(
            f"{name} holds NaN or plus infinity, which no log-prob is; the trace is not written."
        )
    out = array.astype(object)
    out[~np.isfinite(array)] = None
    return out.tolist()

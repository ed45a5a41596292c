"""What one round did: the record that views, files and tests read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kdnb.arrays import Float32, HostArray, Int32, UInt64
from kdnb.errors import KdnbError, TraceError
from kdnb.tree import DraftTree

FORMAT_VERSION = 1
ARRAYS = {  # optional array fields and their dtypes
    "next_ids": np.int32,
    "target_log_prob": np.float32,
    "cache_row": np.int32,
    "draft_top_ids": np.int32,
    "draft_top_log_probs": np.float32,
    "target_top_ids": np.int32,
    "target_top_log_probs": np.float32,
}
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
        target_log_prob: float32 [num_nodes]; target log-prob of each node's token given its parent; root 0.
        cache_row: int32 [num_nodes]; the cache row verify wrote for each node.
        draft_top_ids: int32 [max_depth, k]; per depth the drafter's best ids, k = min(node_budget, vocab_size).
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

    @property
    def num_accepted(self) -> int:
        """Drafted nodes kept."""
        return len(self.accepted) - 1

    @property
    def num_emitted(self) -> int:
        """Tokens the round yields: the accepted drafts and the bonus token."""
        return len(self.accepted)

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the tree's fields beside the round's; what was not recorded is absent.

        Infinite log-probs (a token of probability 0) are null; visible_words are strings of 16
        hexadecimal digits per word.
        """
        data: dict[str, Any] = {"prefix_len": self.prefix_len, **self.tree.to_json()}
        data |= {
            "accepted": self.accepted.tolist(),
            "bonus_id": self.bonus_id,
            "emitted": self.emitted.tolist(),
            "times_us": {stage: round(us, 1) for stage, us in self.times_us.items()},
        }
        for name in ("min_gap", "policy", "verify_rule"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        for name in ARRAYS:
            if getattr(self, name) is not None:
                data[name] = _finite(getattr(self, name))
        if self.visible_words is not None:
            data["visible_words"] = [
                "".join(f"{word:016x}" for word in row) for row in self.visible_words.tolist()
            ]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RoundTrace":
        """Undo `to_json`.

        Raises:
            TraceError: if a field is missing or cannot be used.
        """
        try:
            arrays = {
                name: np.array(_with_infinities(data[name]), dtype=dtype)
                for name, dtype in ARRAYS.items()
                if data.get(name) is not None
            }
            words = data.get("visible_words")
            accepted = np.array(data["accepted"], dtype=np.int32)
            tree = DraftTree.from_json(data)
            if not len(accepted) or accepted.min() < 0 or accepted.max() >= tree.num_nodes:
                raise TraceError(
                    f"accepted is {accepted.tolist()} but the tree has nodes 0 to {tree.num_nodes - 1}"
                )
            path = tree.token_ids[accepted[1:]].tolist()
            return cls(
                prefix_len=int(data["prefix_len"]),
                tree=tree,
                accepted=accepted,
                bonus_id=int(data["bonus_id"]),
                emitted=np.array(data.get("emitted", [*path, data["bonus_id"]]), dtype=np.int32),
                times_us=dict(data.get("times_us", {})),
                min_gap=data.get("min_gap"),
                policy=data.get("policy"),
                verify_rule=data.get("verify_rule"),
                visible_words=None if words is None else _words(words),
                **{"next_ids": None, **arrays},
            )
        except KeyError as error:
            raise TraceError(f"a round has no {error.args[0]}") from None
        except (TypeError, ValueError, OverflowError, KdnbError) as error:
            raise TraceError(f"a round cannot be used: {str(error).rstrip('.')}") from None


def _finite(array: HostArray) -> Any:
    """Nested lists in which what is not finite is None: JSON has no infinity."""
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        return np.where(np.isfinite(array), array.astype(object), None).tolist()
    return array.tolist()


def _with_infinities(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_infinities(value) for value in values]
    return -np.inf if values is None else values


def _words(rows: list[str]) -> UInt64:
    return np.array(
        [[int(row[at : at + 16], 16) for at in range(0, len(row), 16)] for row in rows],
        dtype=np.uint64,
    )

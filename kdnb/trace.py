"""What one round did: the record that views, files and tests read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kdnb.arrays import Float32, Int32, UInt64
from kdnb.tree import DraftTree

FORMAT_VERSION = 1
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

"""What one verification kept: the accepted path and the bonus token."""

from dataclasses import dataclass

from kdnb.arrays import Int32


@dataclass(frozen=True, eq=False)
class Acceptance:
    """The outcome of a verify rule on one tree.

    Args:
        accepted: int32 [num_emitted]; node indices of the kept path, root (0) first, ascending.
        bonus_id: The token drawn after the last kept node; always emitted, the next round's root.
        next_ids: int32 [num_nodes] or None; the target's own choice after every node, where the rule
            has one.
        min_gap: Smallest margin by which a choice on the path was made (logits, or logits plus noise),
            or None.
    """

    accepted: Int32
    bonus_id: int
    next_ids: Int32 | None = None
    min_gap: float | None = None

    @property
    def num_accepted(self) -> int:
        """Drafted nodes kept (the root is not counted)."""
        return len(self.accepted) - 1

    @property
    def num_emitted(self) -> int:
        """Tokens this round adds to the output: the accepted drafts and the bonus token."""
        return len(self.accepted)

    def __repr__(self) -> str:
        path = ",".join(str(node) for node in self.accepted.tolist())
        return f"Acceptance(accepted=[{path}], bonus_id={self.bonus_id}, num_emitted={self.num_emitted})"

"""What a drafter is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kdnb.arrays import Int32
from kdnb.backends.base import Array
from kdnb.draft import Draft, DraftContext
from kdnb.tree import DraftTree

if TYPE_CHECKING:  # drafters and the model are siblings: neither imports the other at run time
    from kdnb.model import Target


@runtime_checkable
class Drafter(Protocol):
    """Proposes what may come next. What it proposes changes the speed, never the text.

    The loop calls `start` once, then `commit` for every chunk of the prompt, and in each round
    `draft` and, with what the target kept, `commit`.

    """

    @property
    def max_depth(self) -> int:
        """Depths below the root it can reach."""

    @property
    def tap_names(self) -> tuple[str, ...]:
        """Values of the target's forward it wants to see, from `target.tap_names`."""

    def start(self, target: "Target") -> None:
        """Begin a new sequence: forget the last one; raise DrafterError if the target does not fit."""

    def draft(self, context: DraftContext) -> Draft | DraftTree:
        """Propose below the root.

        Returns:
            A Draft (marginals; a policy makes the tree) or a DraftTree of its own within
            context.node_budget, rooted at context.root_id.
        """

    def commit(self, token_ids: Int32, features: Mapping[str, Array]) -> None:
        """See the rows that were just committed to the target's cache.

        Args:
            token_ids: int32 [rows].
            features: Per tap name the backend's array [rows, ...].
        """

"""A tree whose children are drawn from the drafter, for rejection sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Float32, check_integer
from kdnb.draft import Draft
from kdnb.errors import ConfigError
from kdnb.noise import Noise
from kdnb.policies.base import check_node_budget
from kdnb.reference.transforms import draw_token, softmax, transform_logits
from kdnb.tree import DraftTree

DRAFT_STREAM = 3  # of a drafter's draws; node i of a round uses DRAFT_STREAM + i


@dataclass(frozen=True)
class Sampled:
    """Draw children without replacement from each depth's distribution, breadth first.

    For MultiRoundRejection, which needs to know what was drawn from what (tree.sampled_from). That is set
    only where the draft has the round's noise: without it the draws are the same in every round, a sketch
    of a sampled tree and no sample.

    Args:
        children: Children per node at depth 0, 1, ...; the last one holds for deeper nodes. Fewer where
            the distribution or the budget has no more.
        temperature: Of the drafter's distribution; greater than 0.

    Raises:
        ConfigError: if a value is out of range.
    Source: SpecInfer, Miao et al. 2023 (arXiv:2305.09781); children drawn one after
        another, each from what is left of the distribution.
    """

    children: tuple[int, ...] = (3, 2, 1)
    temperature: float = 1.0

    def __post_init__(self) -> None:
        widths = tuple(self.children) if isinstance(self.children, Sequence) else ()
        if not widths:
            raise ConfigError(f"children is {self.children!r}; use one positive integer per depth.")
        for width in widths:
            check_integer("children", width, 1)
        object.__setattr__(self, "children", widths)
        if isinstance(self.temperature, bool) or not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; use a number above 0.")

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        noise = draft.noise or Noise(0)
        if node_budget == 0 or draft.max_depth == 0:
            return DraftTree.root_only(draft.root_id)
        probs = softmax(transform_logits(draft.log_probs, self.temperature, 0, 1.0)).astype(np.float32)
        token_ids, parents, depths, own = [draft.root_id], [-1], [0], [0.0]
        node = 0
        while node < len(token_ids) and len(token_ids) <= node_budget:
            depth = depths[node]
            if depth < draft.max_depth:
                width = self.children[min(depth, len(self.children) - 1)]
                room = node_budget + 1 - len(token_ids)
                for token_id in _draw(probs[depth], min(width, room), noise, depth, node):
                    token_ids.append(token_id)
                    parents.append(node)
                    depths.append(depth + 1)
                    own.append(float(draft.log_probs[depth, token_id]))
            node += 1
        tree = DraftTree.from_parents(token_ids, parents, own)
        return DraftTree(
            tree.token_ids,
            tree.parents,
            tree.scores,
            draft_log_probs=tree.draft_log_probs,
            sampled_from=None if draft.noise is None else probs,
        )


def _draw(probs: Float32, count: int, noise: Noise, depth: int, node: int) -> list[int]:
    """Tokens in the order of successive draws without replacement."""
    left = probs.astype(np.float64)
    drawn: list[int] = []
    count = min(count, int(np.count_nonzero(left)))
    for draw in noise.uniform(depth, DRAFT_STREAM + node, count):
        drawn.append(draw_token(left, draw))
        left[drawn[-1]] = 0
    return drawn

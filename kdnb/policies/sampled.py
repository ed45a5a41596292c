"""A tree whose children are drawn from the drafter, for rejection sampling."""

from dataclasses import dataclass

import numpy as np

from kdnb.draft import Draft
from kdnb.errors import ConfigError
from kdnb.noise import Noise
from kdnb.policies.base import check_node_budget
from kdnb.tree import DraftTree

DRAFT_STREAM = 3  # of a drafter's draws; node i of a round uses DRAFT_STREAM + i


@dataclass(frozen=True)
class Sampled:
    """Draw children without replacement from each depth's distribution, breadth first.

    For MultiRoundRejection, which needs to know what was drawn from what (tree.sampled_from).

    Args:
        children: Children per node at depth 0, 1, ...; the last one holds for deeper nodes.
        temperature: Of the drafter's distribution; greater than 0.

    Raises:
        ConfigError: if a value is out of range.
    Source: SpecInfer, Miao et al. 2023 (arXiv:2305.09781); draws by Gumbel top-k, Kool et al. 2019.
    """

    children: tuple[int, ...] = (3, 2, 1)
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.children or min(self.children) < 1:
            raise ConfigError(f"children is {self.children}; use positive numbers.")
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}; use a number above 0.")

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        noise = draft.noise or Noise(0)
        scaled = draft.log_probs.astype(np.float64) / self.temperature
        probs = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
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
            sampled_from=probs.astype(np.float32),
        )


def _draw(probs: np.ndarray, count: int, noise: Noise, depth: int, node: int) -> list[int]:
    """Tokens in the order of successive draws without replacement."""
    u = noise.uniform(depth, DRAFT_STREAM + node, len(probs))
    with np.errstate(divide="ignore"):  # a token of probability 0 is never drawn
        keys = np.log(probs.astype(np.float32).astype(np.float64)) - np.log(-np.log(u))
    order = np.argsort(-keys, kind="stable")[:count]
    return [int(token_id) for token_id in order if keys[token_id] > -np.inf]

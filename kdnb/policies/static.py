"""A tree of fixed shape."""

from dataclasses import dataclass

from kdnb.draft import Draft
from kdnb.errors import ConfigError
from kdnb.policies.base import check_node_budget
from kdnb.reference.tree_build import Node, tree_of
from kdnb.tree import DraftTree


@dataclass(frozen=True)
class Static:
    """The same rank paths in every round, whatever the drafter's probabilities.

    Args:
        choices: Rank paths: (0,) is the best token, (0, 1) the second best below it, ... Every path's
            beginnings must be there too. The first node_budget of them are used, shorter paths first,
            then lexicographically; paths beyond the draft's depth or vocabulary are left out.

    Raises:
        ConfigError: if a path is empty, repeated, negative, or its beginning is missing.
    Source: Medusa's and EAGLE-1's choices lists.
    """

    choices: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))

    def __post_init__(self) -> None:
        paths = [tuple(path) for path in self.choices]
        known = set(paths)
        if len(known) != len(paths):
            raise ConfigError("choices names a path twice.")
        for path in paths:
            if not path or any(type(rank) is not int or rank < 0 for rank in path):
                raise ConfigError(f"choices has {path}; a path is one or more ranks from 0 up.")
            if len(path) > 1 and path[:-1] not in known:
                raise ConfigError(f"choices has {path} but not its beginning {path[:-1]}.")
        ordered = tuple(sorted(paths, key=lambda path: (len(path), path)))
        object.__setattr__(self, "choices", ordered)

    def __call__(self, draft: Draft, node_budget: int) -> DraftTree:
        """Build the tree; see TreePolicy."""
        check_node_budget(node_budget)
        widest = max((max(path) for path in self.choices), default=0)
        ids, log_probs = draft.top_k(widest + 1)
        depth, width = log_probs.shape
        nodes: list[Node] = []
        for path in self.choices:
            if len(path) <= depth and max(path) < width and len(nodes) < node_budget:
                score = sum(float(log_probs[level, rank]) for level, rank in enumerate(path))
                nodes.append((-score, path))
        return tree_of(nodes, ids, log_probs, draft.root_id)

"""Drafting without a model: what followed the last tokens earlier in the text."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from kdnb.arrays import Int32, check_integer
from kdnb.backends.base import Array
from kdnb.draft import DraftContext
from kdnb.errors import ConfigError
from kdnb.tree import DraftTree

if TYPE_CHECKING:
    from kdnb.model import Target


@dataclass
class _Trie:
    """A proposed token with how much evidence there is for it, and what came after it."""

    weight: float = 0.0
    children: dict[int, "_Trie"] = field(default_factory=dict)


@dataclass(frozen=True)
class NGram:
    """Prompt lookup: continuations of earlier occurrences of the last n tokens, merged into a tree.

    Every earlier place where the last n tokens stand counts, with weight n for the longest n that
    matches there. A node's draft probability is its share of its parent's weight. Where nothing matches
    the tree is the root alone.

    Args:
        max_depth: Tokens copied from each place.
        max_n: Longest match looked for.
        min_n: Shortest match that counts.

    Raises:
        ConfigError: if the numbers are not 1 <= min_n <= max_n and max_depth >= 1.
    Source: prompt lookup decoding (Saxena 2023), as a tree.
    """

    max_depth: int = 8
    max_n: int = 4
    min_n: int = 1
    tap_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("max_depth", "max_n", "min_n"):
            check_integer(name, getattr(self, name), 1)
        if not 1 <= self.min_n <= self.max_n or self.max_depth < 1:
            raise ConfigError(
                f"min_n is {self.min_n}, max_n {self.max_n} and max_depth {self.max_depth}; use "
                "1 <= min_n <= max_n and a depth of 1 or more."
            )

    def start(self, target: "Target") -> None:
        """Begin a new sequence; it keeps nothing between rounds."""

    def commit(self, token_ids: Int32, features: Mapping[str, Array]) -> None:
        """See committed rows; the context of each round brings the text."""

    def draft(self, context: DraftContext) -> DraftTree:
        """Propose a tree within the budget; see Drafter."""
        text = context.token_ids.tolist()
        return _best_first(self._trie(text), context.root_id, context.node_budget)

    def _trie(self, text: list[int]) -> _Trie:
        root = _Trie()
        for end in range(1, len(text)):  # text[:end] ends where the whole text might end
            n = self._match(text, end)
            if n < self.min_n:
                continue
            root.weight += n
            node = root
            for token_id in text[end : end + self.max_depth]:
                node = node.children.setdefault(token_id, _Trie())
                node.weight += n
        return root

    def _match(self, text: list[int], end: int) -> int:
        n = 0
        while n < min(self.max_n, end) and text[end - 1 - n] == text[-1 - n]:
            n += 1
        return n


def _best_first(root: _Trie, root_id: int, node_budget: int) -> DraftTree:
    """The most probable nodes of a trie; equal ones to the lower id of the shallower path."""
    token_ids, parents, log_probs = [root_id], [-1], [0.0]
    heap: list[tuple[float, tuple[int, ...], int]] = []  # -score, path, parent node
    places: dict[tuple[int, ...], _Trie] = {(): root}

    def offer(path: tuple[int, ...], node: int, score: float) -> None:
        trie = places[path]
        for token_id, child in trie.children.items():
            below = (*path, token_id)
            places[below] = child
            heapq.heappush(heap, (-score - math.log(child.weight / trie.weight), below, node))

    offer((), 0, 0.0)
    scores = [0.0]
    while heap and len(token_ids) <= node_budget:
        negative, path, parent = heapq.heappop(heap)
        token_ids.append(path[-1])
        parents.append(parent)
        log_probs.append(-negative - scores[parent])
        scores.append(-negative)
        offer(path, len(token_ids) - 1, -negative)
    return DraftTree.from_parents(token_ids, parents, log_probs)

"""Where two runs part."""

from dataclasses import dataclass

import numpy as np

from kdnb.arrays import HostArray
from kdnb.run import Run
from kdnb.trace import RoundTrace

SCORE_TOLERANCE = 1e-4  # of scores, which differ in their last bits between backends


@dataclass(frozen=True)
class Difference:
    """The first place where two runs are not equal.

    Args:
        field: What differs: "prompt_ids", "token_ids", "rounds" or a field of a round.
        round: Index of the round; None where whole sequences differ.
        node: Index of the node within the round; None where the field has none.
        place: Index within the field.
        first: Value in the first run; None where it has nothing there.
        second: Value in the second run.
    """

    field: str
    round: int | None
    node: int | None
    place: int
    first: int | float | None
    second: int | float | None


def first_difference(a: Run, b: Run) -> Difference | None:
    """Compare two runs: prompts, then round by round, then the emitted tokens.

    Of a round: prefix_len, the tree's tokens and parents, its scores (to 1e-4, where both have them), the
    target's choices, the accepted path, the bonus token. Times and names do not count.

    Args:
        a: The first run.
        b: The second run.

    Returns:
        Difference, or None where they are equal.
    """
    found = _first("prompt_ids", a.prompt_ids, b.prompt_ids)
    if found is not None:
        return found
    for index, (ours, theirs) in enumerate(zip(a.rounds, b.rounds, strict=False)):
        found = _round_difference(index, ours, theirs)
        if found is not None:
            return found
    if len(a.rounds) != len(b.rounds):
        shared = min(len(a.rounds), len(b.rounds))
        return Difference("rounds", shared, None, shared, len(a.rounds), len(b.rounds))
    return _first("token_ids", a.token_ids, b.token_ids)


def first_token_difference(a: Run, b: Run) -> Difference | None:
    """Compare only what two runs emitted: None where the texts are equal, however they came."""
    return _first("prompt_ids", a.prompt_ids, b.prompt_ids) or _first("token_ids", a.token_ids, b.token_ids)


def _round_difference(index: int, a: RoundTrace, b: RoundTrace) -> Difference | None:
    pairs: list[tuple[str, HostArray | None, HostArray | None]] = [
        ("prefix_len", np.array([a.prefix_len]), np.array([b.prefix_len])),
        ("token_ids", a.tree.token_ids, b.tree.token_ids),
        ("parents", a.tree.parents, b.tree.parents),
        ("scores", a.tree.scores, b.tree.scores),
        ("next_ids", a.next_ids, b.next_ids),
        ("accepted", a.accepted, b.accepted),
        ("bonus_id", np.array([a.bonus_id]), np.array([b.bonus_id])),
    ]
    for field, ours, theirs in pairs:
        if ours is None or theirs is None:
            continue
        found = _first(field, ours, theirs, index)
        if found is not None:
            return found
    return None


def _first(field: str, a: HostArray, b: HostArray, index: int | None = None) -> Difference | None:
    shared = min(len(a), len(b))
    if np.issubdtype(a.dtype, np.floating):
        with np.errstate(invalid="ignore"):  # minus infinity on both sides
            wrong = (a[:shared] != b[:shared]) & ~(np.abs(a[:shared] - b[:shared]) <= SCORE_TOLERANCE)
    else:
        wrong = a[:shared] != b[:shared]
    places = np.flatnonzero(wrong)
    if not places.size and len(a) == len(b):
        return None
    place = int(places[0]) if places.size else shared
    first = a[place].item() if place < len(a) else None
    second = b[place].item() if place < len(b) else None
    node: int | None = None
    if field == "accepted":  # the place is a depth; its value is the node
        node = first if first is not None else second
    elif index is not None and field not in ("prefix_len", "bonus_id"):
        node = place
    return Difference(field, index, node, place, first, second)

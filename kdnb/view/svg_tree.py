"""The node-link drawing of a tree."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Float32, Int32
from kdnb.tree import DraftTree
from kdnb.view.glyphs import shorten
from kdnb.view.layout import tidy_rows
from kdnb.view.svg_parts import Panel, escape, label, label_width, num

NODE_HEIGHT = 18.0
MAX_TOKEN = 14  # columns of a node's token
GAP = 34.0  # between two depths
HEAD = 24.0  # above the topmost row
SMALL_TREE = 80  # nodes up to which probabilities are written beside the tokens
WIDTH_STEP = 0.25  # of edges, so that the last bits of a probability do not show


@dataclass(frozen=True)
class Shown:
    """What is known of a tree's nodes.

    Args:
        tree: The tree.
        token_text: Visible form of a token id.
        path: Accepted nodes, root first; empty where nothing was verified.
        next_ids: The target's choice after each node, or None.
        target_log_prob: The target's log-prob of each node, or None.
        bonus_id: The token after the accepted path, or None.
        prefix_len: Position of the root, or None.
    """

    tree: DraftTree
    token_text: Callable[[int], str]
    path: tuple[int, ...] = ()
    next_ids: Int32 | None = None
    target_log_prob: Float32 | None = None
    bonus_id: int | None = None
    prefix_len: int | None = None

    def token(self, node: int) -> str:
        """A node's token."""
        return self.token_text(int(self.tree.token_ids[node]))


def tree_panel(shown: Shown) -> Panel:
    """Draw the nodes by depth from left to right, the accepted path heavy and filled."""
    tree = shown.tree
    pitch = NODE_HEIGHT + (8 if tree.num_nodes <= SMALL_TREE else 3)
    texts = [shorten(shown.token(node), MAX_TOKEN) for node in range(tree.num_nodes)]
    probs = _percents(tree)
    widths = [
        max(NODE_HEIGHT + 4, label_width(text) + 12) + (label_width(prob, 8) + 3 if prob else 0)
        for text, prob in zip(texts, probs, strict=True)
    ]
    depths = tree.depths.tolist()
    left = _columns(depths, widths, shown)
    rows = [HEAD + NODE_HEIGHT / 2 + row * pitch for row in tidy_rows(tree.parents.tolist())]
    place = [(left[depth], row) for depth, row in zip(depths, rows, strict=True)]
    heads = [
        label(left[depth], 10, "root" if depth == 0 else f"depth {depth}", "small")
        for depth in range(tree.max_depth + 1)
    ]
    nodes = [
        _node(shown, node, place[node], widths[node], texts[node], probs[node])
        for node in range(tree.num_nodes)
    ]
    elements = [*heads, *_edges(shown, place, widths), *nodes]
    width = max(x + w for (x, _), w in zip(place, widths, strict=True))
    height = max(rows) + NODE_HEIGHT / 2
    if shown.bonus_id is not None and shown.path:
        bonus, right, low = _bonus(shown, place, widths, left, rows, pitch)
        elements += bonus
        width, height = max(width, right), max(height, low)
    return Panel(width, height + 2, tuple(elements))


def describe_node(shown: Shown, node: int) -> str:
    """What is known of a node, one fact per line."""
    tree = shown.tree
    token_id, depth = int(tree.token_ids[node]), int(tree.depths[node])
    lines = [f"node {node}: {shown.token(node)} (id {token_id})"]
    lines.append(f"depth {depth}" + (f", parent {int(tree.parents[node])}" if node else ", the root"))
    if shown.prefix_len is not None:
        lines[-1] += f", position {shown.prefix_len + depth}"
    if node and tree.ranks is not None:
        lines.append(f"rank {int(tree.ranks[node])} at its depth")
    for name, values in (
        ("draft probability", tree.draft_log_probs),
        ("path probability", tree.scores),
        ("target probability", shown.target_log_prob),
    ):
        if node and values is not None:
            lines.append(f"{name} {math.exp(float(values[node])):.3f}")
    if shown.next_ids is not None:
        choice = int(shown.next_ids[node])
        lines.append(f"the target goes on with {shown.token_text(choice)} (id {choice})")
    if shown.path:
        lines.append("accepted" if node in shown.path else "not accepted")
    return "\n".join(lines)


def _percents(tree: DraftTree) -> list[str]:
    """Draft probability of each node's own token in percent, where there is room to write it."""
    if tree.draft_log_probs is None or tree.num_nodes > SMALL_TREE:
        return [""] * tree.num_nodes
    shares = np.exp(tree.draft_log_probs.astype(np.float64))
    return ["", *(f"{100 * share:.0f}" for share in shares[1:].tolist())]


def _columns(depths: list[int], widths: list[float], shown: Shown) -> list[float]:
    """Left edge of every depth, and of one more for the bonus token."""
    left = [0.0]
    for depth in range(max(depths) + 1):
        widest = max(w for w, d in zip(widths, depths, strict=True) if d == depth)
        left.append(left[-1] + max(widest, label_width(f"depth {depth}", 9) - 10) + GAP)
    return left


def _edges(shown: Shown, place: list[tuple[float, float]], widths: list[float]) -> list[str]:
    """Edges as wide as the probability of their path; those of the accepted path on top."""
    tree = shown.tree
    kept = set(shown.path)
    plain, on_path = [], []
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[node])
        (x, y), (x0, y0) = place[node], place[parent]
        share = 0.0 if tree.scores is None else math.exp(float(tree.scores[node]))
        width = 1 + round(2.5 * share / WIDTH_STEP) * WIDTH_STEP
        kind = "edge"
        if node in kept:
            kind, width = "edge kept", max(width, 2.5)
        elif shown.next_ids is not None and int(shown.next_ids[parent]) == int(tree.token_ids[node]):
            kind = "edge agreed"
        drawn = _curve(x0 + widths[parent], y0, x, y, kind, width)
        (on_path if node in kept else plain).append(drawn)
    return plain + on_path


def _curve(x0: float, y0: float, x1: float, y1: float, kind: str, width: float) -> str:
    middle = num((x0 + x1) / 2)
    start, end = f"{num(x0)} {num(y0)}", f"{num(x1)} {num(y1)}"
    path = f"M{start}C{middle} {num(y0)} {middle} {num(y1)} {end}"
    return f'<path class="{kind}" stroke-width="{num(width)}" d="{path}"/>'


def _node(shown: Shown, node: int, place: tuple[float, float], width: float, text: str, prob: str) -> str:
    kept = node in shown.path
    tooltip = f"<title>{escape(describe_node(shown, node))}</title>"
    share = label_width(prob, 8) + 3 if prob else 0
    x, y = place
    corner = 3 if node == 0 else NODE_HEIGHT / 2
    parts = [_box(x, y, width, corner, 2 if kept else 1)]
    parts.append(label(x + (width - share) / 2, y + 4, text, anchor="middle"))
    if prob:
        parts.append(label(x + width - 6, y + 3, prob, "prob", "end"))
    if node and shown.tree.num_nodes <= SMALL_TREE:
        parts.append(label(x + 1, y - NODE_HEIGHT / 2 - 1, str(node), "index", "end"))
    kind = "node kept" if kept else "node"
    return f'<g class="{kind}" data-node="{node}">{tooltip}{"".join(parts)}</g>'


def _bonus(
    shown: Shown,
    place: list[tuple[float, float]],
    widths: list[float],
    left: list[float],
    rows: list[float],
    pitch: float,
) -> tuple[list[str], float, float]:
    """The bonus token behind the accepted path, in a free row of its column."""
    last = shown.path[-1]
    depths = shown.tree.depths
    x, y = left[int(depths[last]) + 1], place[last][1]
    taken = sorted(rows[node] for node in np.flatnonzero(depths == depths[last] + 1).tolist())
    y = _free_row(y, taken, pitch)
    text = shorten(shown.token_text(int(shown.bonus_id or 0)), MAX_TOKEN)
    width = max(NODE_HEIGHT + 4, label_width(text) + 12)
    tooltip = f"<title>{escape(f'bonus token: {text} (id {shown.bonus_id}), the next root')}</title>"
    box = _box(x, y, width, 3, 1.5) + label(x + width / 2, y + 4, text, anchor="middle")
    edge = _curve(place[last][0] + widths[last], place[last][1], x, y, "edge bonus", 2)
    note = label(x + width + 4, y + 3, "bonus", "small")
    elements = [edge, f'<g class="node bonus">{tooltip}{box}</g>', note]
    return elements, x + width + 4 + label_width("bonus", 9), y + NODE_HEIGHT / 2


def _free_row(wanted: float, taken: list[float], pitch: float) -> float:
    """The place nearest to `wanted` that keeps a pitch's distance to all taken ones."""
    places = [wanted, *(row + sign * pitch for row in taken for sign in (-1, 1))]
    top = HEAD + NODE_HEIGHT / 2
    free = [
        place for place in places if place >= top and all(abs(place - row) >= pitch - 1e-6 for row in taken)
    ]
    return min(free, key=lambda place: (abs(place - wanted), place))


def _box(x: float, y: float, width: float, corner: float, line: float) -> str:
    return (
        f'<rect x="{num(x)}" y="{num(y - NODE_HEIGHT / 2)}" width="{num(width)}" '
        f'height="{num(NODE_HEIGHT)}" rx="{num(corner)}" stroke-width="{num(line)}"/>'
    )

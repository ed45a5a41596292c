"""The node-link drawing of a tree."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from kdnb.arrays import Float32, Int32
from kdnb.tree import DraftTree
from kdnb.view.glyphs import shorten
from kdnb.view.layout import hidden_below, tidy_rows
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

    def short(self, node: int) -> str:
        """A node's token as far as there is room for it."""
        return shorten(self.token(node), MAX_TOKEN)

    @property
    def is_small(self) -> bool:
        """Whether there is room for numbers beside the tokens."""
        return self.tree.num_nodes <= SMALL_TREE


@dataclass(frozen=True)
class Box:
    """Where a node is drawn: its left edge, the middle of its height, its width."""

    x: float
    y: float
    width: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    def rect(self, corner: float, line: float) -> str:
        """Its outline."""
        return (
            f'<rect x="{num(self.x)}" y="{num(self.y - NODE_HEIGHT / 2)}" width="{num(self.width)}" '
            f'height="{num(NODE_HEIGHT)}" rx="{num(corner)}" stroke-width="{num(line)}"/>'
        )


def tree_panel(shown: Shown, max_nodes: int | None = None) -> Panel:
    """Draw the nodes by depth from left to right, the accepted path heavy and filled.

    Args:
        shown: The tree.
        max_nodes: Nodes to draw at the most; None draws all.

    Returns:
        Panel; where nodes are left out, the node above them says how many.
    """
    tree = shown.tree
    parents = tree.parents.tolist()
    hidden = hidden_below(parents, shown.path, max_nodes or tree.num_nodes)
    nodes = [node for node, count in enumerate(hidden) if count >= 0]
    index_of = {node: index for index, node in enumerate(nodes)}
    pitch = NODE_HEIGHT + (8 if tree.num_nodes <= SMALL_TREE else 3)
    boxes: dict[int, Box] = {}
    notes = {node: f"+{hidden[node]}" if hidden[node] else _percent(shown, node) for node in nodes}
    widths = {node: _width(shown, node, notes[node]) for node in nodes}
    left = _columns(shown, widths)
    rows = tidy_rows([index_of.get(parents[node], -1) for node in nodes])
    for node, row in zip(nodes, rows, strict=True):
        y = HEAD + NODE_HEIGHT / 2 + row * pitch
        boxes[node] = Box(left[int(tree.depths[node])], y, widths[node])
    elements = [
        label(x, 10, f"depth {depth}" if depth else "root", "small") for depth, x in enumerate(left[:-1])
    ]
    elements += _edges(shown, boxes)
    width, height = 0.0, 0.0
    for node, box in boxes.items():
        elements.append(_node(shown, node, box, notes[node]))
        width, height = max(width, box.right), max(height, box.y)
    if shown.bonus_id is not None and shown.path:
        bonus, right, low = _bonus(shown, boxes, left, pitch)
        elements += bonus
        width, height = max(width, right), max(height, low)
    return Panel(width + 2, height + NODE_HEIGHT / 2 + 2, tuple(elements))


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


def _percent(shown: Shown, node: int) -> str:
    """Draft probability of a node's own token in percent, where there is room to write it."""
    own = shown.tree.draft_log_probs
    if node == 0 or own is None or not shown.is_small:
        return ""
    return f"{100 * math.exp(float(own[node])):.0f}"


def _width(shown: Shown, node: int, note: str) -> float:
    width = max(NODE_HEIGHT + 4, label_width(shown.short(node)) + 12)
    if shown.is_small and node:
        width += label_width(str(node), 8) + 2
    return width + (label_width(note, 8) + 2 if note else 0)


def _columns(shown: Shown, widths: dict[int, float]) -> list[float]:
    """Left edge of every depth, and of one more for the bonus token."""
    widest: dict[int, float] = {}
    for node, width in widths.items():
        depth = int(shown.tree.depths[node])
        widest[depth] = max(widest.get(depth, label_width("depth 00", 9) - GAP), width)
    left = [0.0]
    for depth in range(len(widest)):
        left.append(left[-1] + widest[depth] + GAP)
    return left


def _edges(shown: Shown, boxes: dict[int, Box]) -> list[str]:
    """Edges as wide as the probability of their path; those of the accepted path on top."""
    tree = shown.tree
    kept = set(shown.path)
    plain: list[str] = []
    on_path: list[str] = []
    for node, box in boxes.items():
        if node == 0:
            continue
        parent = int(tree.parents[node])
        share = 0.0 if tree.scores is None else math.exp(float(tree.scores[node]))
        width = 1 + round(2.5 * share / WIDTH_STEP) * WIDTH_STEP
        kind = "edge"
        if node in kept:
            kind, width = "edge kept", max(width, 2.5)
        elif shown.next_ids is not None and int(shown.next_ids[parent]) == int(tree.token_ids[node]):
            kind = "edge agreed"
        drawn = _curve(boxes[parent], box, kind, width)
        (on_path if node in kept else plain).append(drawn)
    return plain + on_path


def _curve(above: Box, below: Box, kind: str, width: float) -> str:
    middle = num((above.right + below.x) / 2)
    start, end = f"{num(above.right)} {num(above.y)}", f"{num(below.x)} {num(below.y)}"
    path = f"M{start}C{middle} {num(above.y)} {middle} {num(below.y)} {end}"
    return f'<path class="{kind}" stroke-width="{num(width)}" d="{path}"/>'


def _node(shown: Shown, node: int, box: Box, note: str) -> str:
    kept = node in shown.path
    index = str(node) if node and shown.is_small else ""
    left = label_width(index, 8) + 2 if index else 0.0
    right = label_width(note, 8) + 2 if note else 0.0
    middle = box.x + left + (box.width - left - right) / 2
    parts = [box.rect(3 if node == 0 else NODE_HEIGHT / 2, 2 if kept else 1)]
    parts.append(label(middle, box.y + 4, shown.short(node), "token", "middle"))
    if index:
        parts.append(label(box.x + 6, box.y + 3, index, "index"))
    if note:
        parts.append(label(box.right - 6, box.y + 3, note, "prob", "end"))
    tooltip = f"<title>{escape(describe_node(shown, node))}</title>"
    kind = "node kept" if kept else "node"
    return f'<g class="{kind}" data-node="{node}">{tooltip}{"".join(parts)}</g>'


def _bonus(
    shown: Shown, boxes: dict[int, Box], left: list[float], pitch: float
) -> tuple[list[str], float, float]:
    """The bonus token behind the accepted path, in a free row of its column."""
    last = shown.path[-1]
    depth = int(shown.tree.depths[last]) + 1
    taken = sorted(box.y for node, box in boxes.items() if shown.tree.depths[node] == depth)
    text = shorten(shown.token_text(int(shown.bonus_id or 0)), MAX_TOKEN)
    width = max(NODE_HEIGHT + 4, label_width(text) + 12)
    box = Box(left[depth], _free_row(boxes[last].y, taken, pitch), width)
    tooltip = f"<title>{escape(f'bonus token: {text} (id {shown.bonus_id}), the next root')}</title>"
    token = label(box.x + width / 2, box.y + 4, text, "token", "middle")
    elements = [
        _curve(boxes[last], box, "edge bonus", 2),
        f'<g class="node bonus">{tooltip}{box.rect(3, 1.5)}{token}</g>',
        label(box.right + 4, box.y + 3, "bonus", "small"),
    ]
    return elements, box.right + 4 + label_width("bonus", 9), box.y


def _free_row(wanted: float, taken: list[float], pitch: float) -> float:
    """The place nearest to `wanted` that keeps a pitch's distance to all taken ones."""
    places = [wanted, *(row + sign * pitch for row in taken for sign in (-1, 1))]
    free = [
        place
        for place in places
        if place >= HEAD + NODE_HEIGHT / 2 and all(abs(place - row) >= pitch - 1e-6 for row in taken)
    ]
    return min(free, key=lambda place: (abs(place - wanted), place))

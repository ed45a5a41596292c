"""The visibility mask of a tree as a grid."""

from itertools import groupby

import numpy as np

from kdnb.arrays import Bool
from kdnb.view.glyphs import shorten
from kdnb.view.svg_parts import Panel, label, label_width, num
from kdnb.view.svg_tree import Shown

GRID = 330.0  # side of a grid with many nodes
MAX_CELL = 12.0
NAMED = 40  # nodes up to which rows have their tokens beside them
MAX_NAME = 8  # columns of such a token
HEAD = 24.0
PREFIX = 26.0  # width of the block that stands for the committed prefix


def mask_panel(shown: Shown, visible: Bool, wrong: Bool | None = None) -> Panel:
    """Draw who sees whom: row node, column node, in node order.

    Rows and columns of the accepted path are banded; its rows have the path's colour.

    Args:
        shown: The tree.
        visible: bool [num_nodes, num_nodes]; the mask to draw.
        wrong: Cells that are not as the tree would have them, or None.

    Returns:
        Panel.
    """
    count = shown.tree.num_nodes
    cell = min(MAX_CELL, GRID / count)
    side = cell * count
    kept = np.zeros(count, dtype=np.bool_)
    kept[list(shown.path)] = True
    names = 0.0
    elements = []
    if count <= NAMED:
        texts = [shorten(shown.token(node), MAX_NAME) for node in range(count)]
        names = max(label_width(f"{node} {text}", 9) for node, text in enumerate(texts)) + 4
        for node, text in enumerate(texts):
            y = HEAD + (node + 0.5) * cell + 3
            kind = "small kept" if kept[node] else "small"
            elements.append(label(names - 4, y, f"{text} {node}", kind, "end"))
    prefix = PREFIX if shown.prefix_len else 0.0
    x, y = names + prefix, HEAD
    if prefix:
        elements.append(
            f'<rect class="prefix" x="{num(names)}" y="{num(y)}" width="{num(prefix - 4)}" '
            f'height="{num(side)}"/>'
        )
    title = "mask: row sees column"
    if prefix:
        title += f" and {shown.prefix_len} committed rows"
    bad = np.zeros_like(visible) if wrong is None else wrong
    if bad.any():
        title += f"; red: {int(bad.sum())} cells are not the tree's"
    elements.append(label(0, 10, title, "small"))
    if count > 1:
        elements.append(label(x, y - 4, "0", "small"))
        elements.append(label(x + side, y - 4, str(count - 1), "small", "end"))
    grid = []
    for node in np.flatnonzero(kept).tolist():
        grid.append(f'<rect class="band" x="0" y="{node}" width="{count}" height="1"/>')
        grid.append(f'<rect class="band" x="{node}" y="0" width="1" height="{count}"/>')
    gap = 0.08 if cell >= 4 else 0.0
    thin = " thin" if cell < 2 else ""
    for kind, cells in (
        ("cells", visible & ~kept[:, None] & ~bad),
        ("cells kept", visible & kept[:, None] & ~bad),
        ("cells wrong", bad),
    ):
        path = _cells_path(cells, gap)
        if path:
            grid.append(f'<path class="{kind}{thin}" d="{path}"/>')
    scale = f'transform="translate({num(x)} {num(y)}) scale({cell:.4g})"'
    elements.append(f"<g {scale}>{''.join(grid)}</g>")
    elements.append(
        f'<rect class="frame" x="{num(x)}" y="{num(y)}" width="{num(side)}" height="{num(side)}"/>'
    )
    return Panel(max(x + side, label_width(title, 9)) + 1, y + side + 1, tuple(elements))


def _cells_path(cells: Bool, gap: float) -> str:
    """Rectangles over the true cells, neighbours in a row joined where there is no gap."""
    out = []
    for row, line in enumerate(cells):
        columns = np.flatnonzero(line).tolist()
        if gap:
            out += [_rect(column + gap, row + gap, 1 - 2 * gap, 1 - 2 * gap) for column in columns]
            continue
        for _, group in groupby(enumerate(columns), key=lambda pair: pair[1] - pair[0]):
            run = [column for _, column in group]
            out.append(_rect(run[0], row, len(run), 1))
    return "".join(out)


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{num(x)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"

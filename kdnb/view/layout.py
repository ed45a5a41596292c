"""Where the nodes of a tree are drawn: depth across, siblings below each other."""

from collections.abc import Collection, Sequence


def tidy_rows(parents: Sequence[int]) -> list[float]:
    """Give every node a row so that no two nodes of one depth are less than one row apart.

    Children stand in node order below each other, a parent beside the middle of them, and subtrees are
    moved as close together as their outlines allow.

    Args:
        parents: Parent of every node; -1 for the root, parents[i] < i.

    Returns:
        The row of every node, the topmost 0.
    Source: Reingold and Tilford 1981, "Tidier drawings of trees".
    """
    count = len(parents)
    children: list[list[int]] = [[] for _ in range(count)]
    for node in range(1, count):
        children[parents[node]].append(node)
    row = [0.0] * count  # of a node within its own subtree, whose first child stands at 0
    shift = [0.0] * count  # of a subtree within its parent's
    outlines: list[list[tuple[float, float]]] = [[] for _ in range(count)]  # (top, bottom) per depth below
    for node in reversed(range(count)):
        outline: list[tuple[float, float]] = []
        for child in children[node]:
            below = outlines[child]
            shift[child] = max(
                (outline[depth][1] + 1 - below[depth][0] for depth in range(min(len(outline), len(below)))),
                default=0.0,
            )
            for depth, (top, bottom) in enumerate(below):
                moved = (top + shift[child], bottom + shift[child])
                if depth < len(outline):
                    outline[depth] = (min(outline[depth][0], moved[0]), max(outline[depth][1], moved[1]))
                else:
                    outline.append(moved)
            outlines[child] = []  # no longer needed
        if children[node]:
            first, last = children[node][0], children[node][-1]
            row[node] = (row[first] + shift[first] + row[last] + shift[last]) / 2
        outlines[node] = [(row[node], row[node]), *outline]
    base = [0.0] * count
    for node in range(1, count):
        base[node] = base[parents[node]] + shift[node]
    rows = [row[node] + base[node] for node in range(count)]
    top = min(rows)
    return [value - top for value in rows]


def hidden_below(parents: Sequence[int], kept: Collection[int], most: int) -> list[int]:
    """Choose the nodes of a big tree that are drawn: the accepted path, then the first ones.

    Args:
        parents: Parent of every node; parents come before their children.
        kept: Nodes of the accepted path.
        most: Nodes to draw, unless the path is longer.

    Returns:
        Per node how many of its descendants are left out just below it; -1 for a node that is left out.
    """
    shown = {0, *kept}
    for node in range(len(parents)):
        if len(shown) >= most:
            break
        shown.add(node)
    below = [0] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        if node not in shown:
            below[parents[node]] += 1 + below[node]
    return [count if node in shown else -1 for node, count in enumerate(below)]

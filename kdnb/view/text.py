"""Trees, rounds and runs drawn as plain text."""

from collections.abc import Callable, Sequence

import numpy as np

from kdnb.arrays import Bool, Float32, HostArray, Int32, unpack_visible
from kdnb.errors import ShapeError
from kdnb.trace import STAGES, RoundTrace
from kdnb.tree import DraftTree
from kdnb.view.glyphs import ASCII, UNICODE, Glyphs, Ink, shorten, text_width
from kdnb.view.layout import hidden_below

TokenText = Callable[[int], str]
MAX_ROWS = 64  # nodes that a tree drawing shows
MAX_INDENT = 60  # columns of branches before a deep tree's left side is cut
WIDE_CELLS = 24  # nodes up to which a mask has a line per row
MAX_MASK = 128  # nodes that a mask drawing shows
MAX_TOKEN = 24  # columns of one token


def draw_tree(
    tree: DraftTree,
    token_text: TokenText | None = None,
    accepted: Sequence[int] | HostArray | None = None,
    next_ids: Int32 | None = None,
    *,
    target_log_prob: Float32 | None = None,
    max_rows: int = MAX_ROWS,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """Draw a tree, one line per node.

    A line shows the node's index, its draft probability after its parent, the probability of its whole
    path, the target's probability where known, and the token on its branch; behind an arrow stands
    what the target itself chose there. The accepted path has a star and double lines.

    Args:
        tree: The tree.
        token_text: Visible form of a token id; None shows ids.
        accepted: Nodes of the kept path, root first, or None.
        next_ids: int32 [num_nodes]; the target's choices, or None.
        target_log_prob: float32 [num_nodes]; the target's log-prob of each node, or None.
        max_rows: Nodes to show at the most: the accepted path, then the first ones. Lines say how many
            are left out below them.
        color: Whether to add terminal colours.
        ascii_only: Whether to do without box-drawing characters.

    Returns:
        The drawing, without a line break at its end.

    Raises:
        ShapeError: if accepted holds a node that the tree has not.
    """
    glyphs, ink = (ASCII if ascii_only else UNICODE), Ink(color)
    show = _shower(token_text, glyphs)
    path = path_nodes(tree, accepted)
    kept = set(path)
    hidden = hidden_below(tree.parents.tolist(), kept, max_rows)
    columns = _number_columns(tree, target_log_prob)
    header = "".join(f"{name:>8}" for name, _ in columns)
    lines = [
        ink.dim(
            f"  {'node':>5}{header}  tree" + (f" {glyphs.arrow} target's choice" * (next_ids is not None))
        )
    ]
    for node, branch in _branches(tree, kept, hidden, glyphs):
        numbers = "".join(f"{values[node]:>8}" for _, values in columns)
        token = show(int(tree.token_ids[node]))
        mark = "*" if node in kept else " "
        line = f"{mark} {node:>5}{numbers}  "
        if len(branch) > MAX_INDENT:
            branch = glyphs.ellipsis + branch[-MAX_INDENT:]
        line += branch + token
        line = ink.kept(line) if node in kept else line
        if next_ids is not None:
            choice = f" {glyphs.arrow} {show(int(next_ids[node]))}"
            is_bonus = bool(path) and node == path[-1]
            line += ink.bonus(choice + " (bonus)") if is_bonus else ink.dim(choice)
        if hidden[node]:
            line += ink.dim(f"  (+{hidden[node]} more below)")
        lines.append(line)
    return "\n".join(lines)


def draw_mask(
    tree: DraftTree,
    accepted: Sequence[int] | HostArray | None = None,
    visible: Bool | None = None,
    *,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """Draw who sees whom inside the tree: row node, column node, in node order.

    Args:
        tree: The tree.
        accepted: Nodes of the kept path, marked with a star, or None.
        visible: bool [num_nodes, num_nodes]; the mask to draw, None is the tree's own.
        color: Whether to add terminal colours.
        ascii_only: Whether to do without block characters.

    Returns:
        The drawing; of a big tree the first rows and columns.
    """
    glyphs, ink = (ASCII if ascii_only else UNICODE), Ink(color)
    cells = tree.visible if visible is None else visible
    count = min(tree.num_nodes, MAX_MASK)
    kept = set(path_nodes(tree, accepted))
    cells = cells[:count, :count]
    lines = []
    if count <= WIDE_CELLS:
        for row in range(count):
            drawn = "".join(glyphs.full * 2 if cell else " ." for cell in cells[row])
            mark = "*" if row in kept else " "
            lines.append(f"{mark}{row:>3} " + (ink.kept(drawn) if row in kept else drawn))
    else:
        signs = {(0, 0): " ", (1, 0): glyphs.upper, (0, 1): glyphs.lower, (1, 1): glyphs.full}
        if ascii_only:
            signs[(1, 1)] = ":"
        padded = np.zeros((count + count % 2, count), dtype=np.bool_)
        padded[:count] = cells
        for row in range(0, count, 2):
            pairs = zip(padded[row].tolist(), padded[row + 1].tolist(), strict=True)
            drawn = "".join(signs[(int(above), int(below))] for above, below in pairs)
            marks = "".join("*" if r in kept else " " for r in (row, row + 1))
            lines.append(f"{marks}{row:>4} |{ink.kept(drawn) if marks.strip() else drawn}")
    if count < tree.num_nodes:
        lines.append(ink.dim(f"(the first {count} of {tree.num_nodes} nodes)"))
    return "\n".join(lines)


def draw_round(
    trace: RoundTrace,
    token_text: TokenText | None = None,
    *,
    mask: bool = True,
    times: bool = True,
    max_rows: int = MAX_ROWS,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """Draw one round: tree, mask, what was kept and what it emitted.

    Args:
        trace: The round.
        token_text: Visible form of a token id; None shows ids.
        mask: Whether to draw the visibility mask: the one the backend was given, where recorded.
        times: Whether to end with the time of each stage.
        max_rows: Nodes to show at the most.
        color: Whether to add terminal colours.
        ascii_only: Whether to do without box-drawing and block characters.

    Returns:
        The drawing.
    """
    glyphs, ink = (ASCII if ascii_only else UNICODE), Ink(color)
    show = _shower(token_text, glyphs)
    tree = trace.tree
    style = {"color": color, "ascii_only": ascii_only}
    parts = [
        draw_tree(
            tree,
            token_text,
            trace.accepted,
            trace.next_ids,
            target_log_prob=trace.target_log_prob,
            max_rows=max_rows,
            **style,
        )
    ]
    if mask and tree.num_nodes > 1:
        used = engine_visible(trace)
        title = "mask: a row sees its ancestors, itself, and the committed prefix"
        if used is not None and not np.array_equal(used, tree.visible):
            title += f"; {int((used != tree.visible).sum())} cells are not the tree's"
        parts += ["", ink.dim(title), draw_mask(tree, trace.accepted, used, **style)]
    drafts = " ".join(show(int(i)) for i in tree.token_ids[trace.accepted[1:]])
    rows = f"rows {trace.prefix_len} to {trace.prefix_len + trace.num_emitted - 1}"
    parts += [
        "",
        f"drafted {tree.num_nodes - 1}, accepted {trace.num_accepted}: "
        + (ink.kept(drafts) or ink.dim("none")),
        f"emitted {len(trace.emitted)}: "
        + " ".join(show(int(i)) for i in trace.emitted)
        + (" (cut)" if len(trace.emitted) < trace.num_emitted else ""),
        f"cache: window rows {_numbers(trace.accepted)} are kept as {rows}",
    ]
    if times and trace.times_us:
        spent = (f"{stage} {trace.times_us[stage] / 1e3:.2f}" for stage in _stages(trace))
        parts.append(f"time in ms: {', '.join(spent)}")
    return "\n".join(parts)


def draw_strip(
    rounds: Sequence[RoundTrace],
    token_text: TokenText | None = None,
    *,
    width: int = 80,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """The emitted tokens in order; what stands between two bars came from one target forward.

    Args:
        rounds: The rounds.
        token_text: Visible form of a token id; None shows ids.
        width: Columns per line.
        color: Whether to add terminal colours.
        ascii_only: Whether to shorten with "..." instead of an ellipsis.

    Returns:
        The drawing; empty without rounds.
    """
    glyphs, ink = (ASCII if ascii_only else UNICODE), Ink(color)
    show = _shower(token_text, glyphs)
    glue = " " if token_text is None else ""
    lines, line, used = [], "|", 1
    for trace in rounds:
        for place, token in enumerate(trace.emitted.tolist()):
            is_bonus = place == len(trace.accepted) - 1
            piece = show(token) + ("|" if place == len(trace.emitted) - 1 else glue)
            size = text_width(piece)
            if used + size > width and used > 1:
                lines.append(line)
                line, used = " ", 1
            line += ink.bonus(piece) if is_bonus else ink.kept(piece)
            used += size
    return "\n".join([*lines, line]) if rounds else ""


def engine_visible(trace: RoundTrace) -> Bool | None:
    """The mask the backend was given: bool [num_nodes, num_nodes], or None if not recorded."""
    if trace.visible_words is None:
        return None
    return unpack_visible(trace.visible_words, trace.tree.num_nodes)


def path_nodes(tree: DraftTree, accepted: Sequence[int] | HostArray | None) -> list[int]:
    """The accepted path as a list, empty for None; ShapeError if a node is not the tree's."""
    if accepted is None:
        return []
    path = [int(node) for node in accepted]
    wrong = [node for node in path if not 0 <= node < tree.num_nodes]
    if wrong:
        raise ShapeError(f"accepted holds node {wrong[0]} but the tree has nodes 0 to {tree.num_nodes - 1}.")
    return path


def _shower(token_text: TokenText | None, glyphs: Glyphs) -> Callable[[int], str]:
    def show(token_id: int) -> str:
        if token_text is None or token_id < 0:
            return str(token_id) if token_id >= 0 else "?"
        shown = shorten(token_text(token_id), MAX_TOKEN, glyphs.ellipsis) or f"<{token_id}>"
        return shown.encode("ascii", "backslashreplace").decode() if glyphs is ASCII else shown

    return show


def _number_columns(tree: DraftTree, target_log_prob: Float32 | None) -> list[tuple[str, list[str]]]:
    named = (("draft", tree.draft_log_probs), ("path", tree.scores), ("target", target_log_prob))
    return [
        (name, ["", *(f"{prob:.3f}" for prob in np.exp(np.asarray(values)[1:]).tolist())])
        for name, values in named
        if values is not None
    ]


def _branches(tree: DraftTree, kept: set[int], hidden: list[int], glyphs: Glyphs) -> list[tuple[int, str]]:
    """Shown nodes from top to bottom, each with the lines to its left."""
    out: list[tuple[int, str]] = []
    stack = [(0, "", "")]  # node, lines to its left, lines to the left of what is below it
    while stack:
        node, left, below = stack.pop()
        out.append((node, left))
        children = [child for child in tree.children[node] if hidden[child] >= 0]
        turn = next((place for place, child in enumerate(children) if child in kept), -1)
        for place in reversed(range(len(children))):
            is_last = place == len(children) - 1
            if place < turn:
                own, down = glyphs.before_kept, glyphs.kept_down
            elif place == turn:
                own, down = (glyphs.kept_last, "   ") if is_last else (glyphs.kept, glyphs.down)
            else:
                own, down = (glyphs.last, "   ") if is_last else (glyphs.branch, glyphs.down)
            stack.append((children[place], below + own, below + down))
    return out


def _stages(trace: RoundTrace) -> list[str]:
    return [*(s for s in STAGES if s in trace.times_us), *(s for s in trace.times_us if s not in STAGES)]


def _numbers(nodes: Int32) -> str:
    return ", ".join(str(node) for node in nodes.tolist())

"""Trees, rounds and runs drawn as SVG, for notebooks, papers and pages without scripts."""

from collections.abc import Callable, Sequence

from kdnb.arrays import HostArray, Int32
from kdnb.run import Run
from kdnb.trace import STAGES, RoundTrace
from kdnb.tree import DraftTree
from kdnb.view.glyphs import shorten
from kdnb.view.svg_mask import mask_panel
from kdnb.view.svg_parts import Panel, beside, document, escape, label, label_width, num, printable
from kdnb.view.svg_tree import NODE_HEIGHT, Shown, describe_node, tree_panel
from kdnb.view.text import TokenText, engine_visible, path_nodes

ROOM = 1080.0  # width of a picture, unless a tree is wider
GAP = 36.0
MAX_TOKEN = 16  # columns of a token in a strip

__all__ = ["round_svg", "run_svg", "tree_svg"]


def tree_svg(
    tree: DraftTree,
    token_text: TokenText | None = None,
    accepted: Sequence[int] | HostArray | None = None,
    next_ids: Int32 | None = None,
    *,
    mask: bool = True,
    max_nodes: int | None = None,
) -> str:
    """Draw a tree, with its mask beside it.

    Args:
        tree: The tree.
        token_text: Visible form of a token id; None shows ids.
        accepted: Nodes of the kept path, root first, or None.
        next_ids: int32 [num_nodes]; the target's choices, or None.
        mask: Whether to draw the visibility mask.
        max_nodes: Nodes to draw at the most, the accepted path first; None draws all.

    Returns:
        SVG text; the same arguments always give the same text.

    Raises:
        ShapeError: if accepted holds a node that the tree has not.
    """
    path = path_nodes(tree, accepted)
    shown = Shown(tree, shower(token_text), tuple(path), next_ids)
    title = f"Draft tree: {tree.num_nodes - 1} drafted nodes, depth {tree.max_depth}"
    panels = [tree_panel(shown, max_nodes)]
    if mask and tree.num_nodes > 1:
        panels.append(mask_panel(shown, tree.visible))
    rows = [beside(panels, GAP, ROOM), *_legend(shown)]
    return document(beside(rows, 10, 0), title, _describe(shown))


def round_svg(
    trace: RoundTrace,
    token_text: TokenText | None = None,
    *,
    times: bool = False,
    max_nodes: int | None = None,
) -> str:
    """Draw a round: tree, accepted path, mask, and the tokens it emitted.

    Args:
        trace: The round.
        token_text: Visible form of a token id; None shows ids.
        times: Whether to show the time of each stage, which differs from run to run.
        max_nodes: Nodes to draw at the most, the accepted path first; None draws all.

    Returns:
        SVG text; without times the same round always gives the same text. The mask is the one the
        backend was given, where recorded; cells that differ from the tree's are red.
    """
    tree = trace.tree
    shown = Shown(
        tree,
        shower(token_text),
        tuple(trace.accepted.tolist()),
        trace.next_ids,
        trace.target_log_prob,
        trace.bonus_id,
        trace.prefix_len,
    )
    panels = [tree_panel(shown, max_nodes)]
    if tree.num_nodes > 1:
        used = engine_visible(trace)
        wrong = None if used is None else used != tree.visible
        panels.append(mask_panel(shown, tree.visible if used is None else used, wrong))
    title = (
        f"{tree.num_nodes - 1} drafted, {trace.num_accepted} accepted, {len(trace.emitted)} emitted "
        f"behind {trace.prefix_len} committed rows"
    )
    strip = _strip([trace], shown.token_text, ROOM)
    rows = [_heading(title), beside(panels, GAP, ROOM), _note("emitted"), strip, *_legend(shown)]
    if times and trace.times_us:
        rows.append(_clock(trace))
    return document(beside(rows, 10, 0), f"Draft-tree round: {title}", _describe(shown))


def run_svg(run: Run) -> str:
    """Draw a run: its tokens in order, those of one round together.

    Args:
        run: The run.

    Returns:
        SVG text; the same tokens and rounds always give the same text.
    """
    summary = run.summary()
    title = f"{summary['num_tokens']} tokens from {summary['target_forwards']} target forwards"
    if "mean_emitted_per_round" in summary:
        title += f", {summary['mean_emitted_per_round']:.2f} per round"
    rows = [_heading(title), _strip(run.rounds, run.token_text, ROOM)]
    words = (
        f"round {index}: {trace.num_accepted} of {trace.tree.num_nodes - 1} drafts accepted, "
        f"{len(trace.emitted)} emitted"
        for index, trace in enumerate(run.rounds)
    )
    return document(beside(rows, 12, 0), title, "; ".join(words) or "no round")


def shower(token_text: TokenText | None) -> Callable[[int], str]:
    """A function that gives something to show for every id."""

    def show(token_id: int) -> str:
        if token_id < 0:
            return "?"
        return printable(token_text(token_id) if token_text else "") or str(token_id)

    return show


def _describe(shown: Shown) -> str:
    """The picture in words: the accepted path, or the first nodes."""
    tree = shown.tree
    if shown.path:
        tokens = " ".join(shown.token(node) for node in shown.path)
        words = f"Accepted path, root first: {tokens}."
        if shown.bonus_id is not None:
            words += f" Bonus token: {shown.token_text(shown.bonus_id)}."
        return words
    few = range(min(8, tree.num_nodes))
    return " | ".join(describe_node(shown, node).replace("\n", ", ") for node in few)


def _heading(text: str) -> Panel:
    return Panel(label_width(text), 14, (label(0, 11, text, "head"),))


def _note(text: str) -> Panel:
    return Panel(label_width(text, 9), 12, (label(0, 9, text, "small"),))


def _legend(shown: Shown) -> list[Panel]:
    """What the signs of a tree mean, as far as they occur."""
    if shown.tree.num_nodes == 1:
        return []
    signs = []
    if shown.is_small and shown.tree.draft_log_probs is not None:
        signs.append("in a node: its index, its token, its draft probability in percent")
    if shown.tree.scores is not None:
        signs.append("edge width: probability of the path")
    if shown.path and shown.next_ids is not None:
        signs.append("dotted: the target's own choice off the path")
    return [_note("; ".join(signs))] if signs else []


def _strip(rounds: Sequence[RoundTrace], show: Callable[[int], str], room: float) -> Panel:
    """Emitted tokens in order; a group of touching boxes is one round."""
    elements: list[str] = []
    x, y, widest = 0.0, NODE_HEIGHT / 2 + 1, 0.0
    for index, trace in enumerate(rounds):
        tokens = [*trace.tree.token_ids[trace.accepted[1:]].tolist(), trace.bonus_id]
        texts = [shorten(show(token), MAX_TOKEN) for token in tokens]
        widths = [max(12.0, label_width(text) + 5) for text in texts]
        if x and x + sum(widths) > room:
            x, y = 0.0, y + NODE_HEIGHT + 8
        start = x
        group = []
        for place, (token, text, width) in enumerate(zip(tokens, texts, widths, strict=True)):
            kind = "node bonus" if place == len(tokens) - 1 else "node kept"
            if place >= len(trace.emitted):
                kind += " cut"
            if x + width > room and x > start:
                x, y = 0.0, y + NODE_HEIGHT + 2
            name = "bonus token" if place == len(tokens) - 1 else f"node {int(trace.accepted[place + 1])}"
            tip = f"round {index}, {name}: {text} (id {token})"
            group.append(
                f'<g class="{kind}"><title>{escape(tip)}</title>'
                f'<rect x="{num(x)}" y="{num(y - NODE_HEIGHT / 2)}" width="{num(width - 1)}" '
                f'height="{num(NODE_HEIGHT)}" rx="2"/>'
                + label(x + (width - 1) / 2, y + 4, text, "token", "middle")
                + "</g>"
            )
            x += width
            widest = max(widest, x)
        elements.append(f'<g data-round="{index}">{"".join(group)}</g>')
        x += 9
    return Panel(widest, y + NODE_HEIGHT / 2 + 1, tuple(elements))


def _clock(trace: RoundTrace) -> Panel:
    """A bar per stage, as long as its share of the round."""
    total = sum(trace.times_us.values()) or 1.0
    elements = []
    for place, stage in enumerate(s for s in STAGES if s in trace.times_us):
        y, us = place * 14.0, trace.times_us[stage]
        width = num(max(1.0, 260 * us / total))
        elements.append(label(0, y + 9, stage, "small"))
        elements.append(f'<rect class="cells" x="56" y="{num(y + 1)}" width="{width}" height="9"/>')
        elements.append(label(56 + float(width) + 6, y + 9, f"{us / 1e3:.2f} ms", "small"))
    return Panel(400, 14.0 * len(elements) / 3, tuple(elements))

"""Drawings of trees, rounds and runs: as text, as SVG, and as matplotlib figures."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdnb.run import Run
    from kdnb.trace import RoundTrace
    from kdnb.tree import DraftTree

__all__ = ["bundle"]

MAX_NODES = 200  # nodes in a notebook's drawing; tree_svg and round_svg draw all


def bundle(shown: "DraftTree | RoundTrace | Run") -> dict[str, str]:
    """What a notebook stores of an object: a drawing for the eye and one for everything else.

    Args:
        shown: A tree, a round, or a run.

    Returns:
        MIME type -> text. Times are left out, so that the same decoding gives the same output.
    """
    from kdnb.run import Run
    from kdnb.trace import RoundTrace
    from kdnb.view import svg, tables, text

    if isinstance(shown, Run):
        picture, words = svg.run_svg(shown), tables.run_table(shown, times=False)
    elif isinstance(shown, RoundTrace):
        picture, words = svg.round_svg(shown, max_nodes=MAX_NODES), text.draw_round(shown, times=False)
    else:
        picture, words = svg.tree_svg(shown, max_nodes=MAX_NODES), text.draw_tree(shown)
    return {"image/svg+xml": picture, "text/plain": words}

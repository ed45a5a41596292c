"""Matplotlib figures of runs. They are `Figure` objects: no window, no global state, safe in threads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdnb.errors import ShapeError, TraceError
from kdnb.trace import STAGES
from kdnb.view.svg_parts import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kdnb.run import Run

INK = LIGHT["ink"]  # legible on light and on dark; the background stays transparent
COLORS = (LIGHT["kept"], LIGHT["bonus-line"], "#7c6fd6", LIGHT["wrong"], LIGHT["line"])
MARKERS = "osD^v"


def acceptance_by_depth(runs: "Sequence[Run]", labels: Sequence[str]) -> "Figure":
    """Share of rounds that kept a node of each depth, one line per run.

    Args:
        runs: The runs to compare.
        labels: Their names.

    Returns:
        Figure.

    Raises:
        ShapeError: if there are not as many labels as runs.
        TraceError: if a run has no rounds.
    """
    if len(runs) != len(labels):
        raise ShapeError(f"labels has {len(labels)} names but there are {len(runs)} runs.")
    figure, axes = _figure("Acceptance by depth", "depth below the root", "share of rounds")
    for place, (run, label) in enumerate(zip(runs, labels, strict=True)):
        _need_rounds(run)
        shares = run.summary()["accepted_by_depth"]
        depths = range(1, len(shares) + 1)
        color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
        axes.plot(depths, shares, label=label, color=color, marker=marker)
    axes.set_ylim(0, 1.03)
    _legend(figure)
    return figure


def emitted_per_round(run: "Run") -> "Figure":
    """Tokens of each round: accepted drafts, and the bonus token on top.

    Args:
        run: The run.

    Returns:
        Figure.

    Raises:
        TraceError: if the run has no rounds.
    """
    _need_rounds(run)
    figure, axes = _figure("Emitted per round", "round", "tokens")
    accepted = [step.num_accepted for step in run.rounds]
    rounds = range(len(accepted))
    axes.bar(rounds, accepted, color=COLORS[0], label="accepted drafts")
    axes.bar(rounds, 1, bottom=accepted, color=COLORS[1], hatch="//", label="bonus token")
    axes.axhline(float(np.mean(accepted)) + 1, color=INK, linestyle=":", label="mean emitted")
    _legend(figure)
    return figure


def time_per_stage(run: "Run") -> "Figure":
    """Median microseconds of each stage of a round.

    Args:
        run: The run.

    Returns:
        Figure.

    Raises:
        TraceError: if the run has no rounds, or no times were recorded.
    """
    _need_rounds(run)
    known = [stage for stage in STAGES if any(stage in step.times_us for step in run.rounds)]
    if not known:
        raise TraceError("the run has no times to draw; its trace was made without them.")
    figure, axes = _figure("Time per stage", "median time in a round (µs)", "")
    medians = [
        float(np.median([step.times_us[stage] for step in run.rounds if stage in step.times_us]))
        for stage in known
    ]
    bars = axes.barh(known[::-1], medians[::-1], color=COLORS[0])
    axes.bar_label(bars, fmt="%.0f", padding=3, color=INK)
    return figure


def _figure(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none")
    axes.set_title(title, color=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    return figure, axes


def _legend(figure: "Figure") -> None:
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=INK)


def _need_rounds(run: "Run") -> None:
    if not run.rounds:
        raise TraceError("the run has no rounds to draw; decode more than one token.")

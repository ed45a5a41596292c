"""Matplotlib figures of runs. They are `Figure` objects: no window, no global state, safe in threads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdnb.errors import TraceError
from kdnb.trace import STAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kdnb.run import Run


def _figure(title: str, x: str, y: str) -> "tuple[Figure, object]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def acceptance_by_depth(runs: "Sequence[Run]", labels: Sequence[str]) -> "Figure":
    """Share of rounds that kept a node of each depth, one line per run."""
    figure, axes = _figure("Acceptance by depth", "depth below the root", "share of rounds")
    for run, label in zip(runs, labels, strict=True):
        shares = run.summary().get("accepted_by_depth", [])
        axes.plot(range(1, len(shares) + 1), shares, marker="o", label=label)  # type: ignore[attr-defined]
    axes.set_ylim(0, 1)  # type: ignore[attr-defined]
    axes.legend()  # type: ignore[attr-defined]
    return figure


def emitted_per_round(run: "Run") -> "Figure":
    """Tokens of each round, accepted drafts and bonus token."""
    _need_rounds(run)
    figure, axes = _figure("Emitted per round", "round", "tokens")
    accepted = [step.num_accepted for step in run.rounds]
    axes.bar(range(len(accepted)), accepted, label="accepted drafts")  # type: ignore[attr-defined]
    axes.bar(range(len(accepted)), 1, bottom=accepted, label="bonus token")  # type: ignore[attr-defined]
    axes.legend()  # type: ignore[attr-defined]
    return figure


def time_per_stage(run: "Run") -> "Figure":
    """Median microseconds of each stage of a round."""
    _need_rounds(run)
    figure, axes = _figure("Time per stage", "median time (µs)", "")
    medians = [np.median([step.times_us.get(stage, 0.0) for step in run.rounds]) for stage in STAGES]
    axes.barh(STAGES[::-1], medians[::-1])  # type: ignore[attr-defined]
    return figure


def _need_rounds(run: "Run") -> None:
    if not run.rounds:
        raise TraceError("the run has no rounds to draw; decode more than one token.")

"""Runs as tables of plain text."""

from collections.abc import Sequence

from kdnb.run import Run
from kdnb.view.glyphs import ASCII, UNICODE, Glyphs, pad, text_width

MAX_ROUNDS = 64  # that a table shows


def rounds_table(
    run: Run, *, times: bool = True, max_rows: int = MAX_ROUNDS, ascii_only: bool = False
) -> str:
    """One line per round: where it began, its tree, what was kept.

    Args:
        run: The run.
        times: Whether to show the time of each round.
        max_rows: Rounds to show at the most.
        ascii_only: Whether to do without block characters.

    Returns:
        The table.
    """
    glyphs = ASCII if ascii_only else UNICODE
    header = ["round", "prefix_len", "drafted", "depth", "accepted", "emitted"] + ["ms"] * times
    rows = [header]
    for index, trace in enumerate(run.rounds[:max_rows]):
        accepted = f"{_bar(trace.num_accepted, trace.tree.max_depth, glyphs)} {trace.num_accepted}"
        row = [index, trace.prefix_len, trace.tree.num_nodes - 1, trace.tree.max_depth, accepted]
        row += [len(trace.emitted)]
        if times:
            row.append(f"{sum(trace.times_us.values()) / 1e3:.2f}" if trace.times_us else "")
        rows.append([str(value) for value in row])
    out = table(rows)
    more = len(run.rounds) - max_rows
    return out + (f"\n({more} more rounds)" if more > 0 else "")


def run_table(run: Run, *, times: bool = True) -> str:
    """The summary of a run, one fact per line.

    Args:
        run: The run.
        times: Whether to show what depends on the clock.

    Returns:
        The table.
    """
    summary = run.summary()
    rows = [["tokens", f"{summary['num_tokens']} (stopped by {summary['stop_reason']})"]]
    rows.append(
        ["target forwards", f"{summary['target_forwards']} (prompt and {summary['num_rounds']} rounds)"]
    )
    if "mean_emitted_per_round" in summary:
        rows.append(["emitted per round", f"{summary['mean_emitted_per_round']:.2f}"])
    if "expected_accepted_per_round" in summary:
        rows.append(
            [
                "accepted per round",
                f"{summary['mean_accepted_per_round']:.2f}, "
                f"{summary['expected_accepted_per_round']:.2f} expected by the drafter",
            ]
        )
    if summary.get("accepted_by_depth"):
        shares = " ".join(f"{share:.0%}" for share in summary["accepted_by_depth"])
        rows.append(["accepted by depth", shares])
    if "min_gap" in summary:
        rows.append(["smallest gap", f"{summary['min_gap']:.4g}"])
    if times and "tokens_per_second" in summary:
        rows.append(
            ["time", f"{summary['wall_us'] / 1e6:.2f} s, {summary['tokens_per_second']:.0f} tokens/s"]
        )
    if times and "times_us" in summary:
        spent = (f"{stage} {us / 1e3:.0f}" for stage, us in summary["times_us"].items())
        rows.append(["ms per stage", ", ".join(spent)])
    return "\n".join(f"{pad(name, 19)}{value}" for name, value in rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns, the first row a heading; numbers to the right."""
    widths = [max(text_width(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [" " * (width - text_width(cell)) + cell for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _bar(value: int, most: int, glyphs: Glyphs) -> str:
    if not most:
        return glyphs.bars[0]
    return glyphs.bars[round(value / most * (len(glyphs.bars) - 1))]

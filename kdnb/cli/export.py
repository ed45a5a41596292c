"""`kdnb export`: a trace or a tree as a picture."""

from pathlib import Path
from typing import Any

import click

from kdnb.cli.options import json_option, load_run, write_json
from kdnb.errors import KdnbError, TraceError
from kdnb.run import Run, read_trace_json, write_whole
from kdnb.tree import DraftTree
from kdnb.view.svg import round_svg, run_svg, tree_svg
from kdnb.view.tables import rounds_table, run_table
from kdnb.view.text import draw_round, draw_tree

LATER = {".html": "HTML", ".png": "PNG"}
WRITTEN = (".svg", ".txt")


@click.command()
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="Where to: a name in .svg or .txt.")
@click.option(
    "--round",
    "which",
    default=None,
    metavar="N",
    help="Which round, from 0, or all. Default: the round that kept most (.svg), all (.txt).",
)
@json_option
def export(trace: str, output: str, which: str | None, json_file: str | None) -> None:
    """Draw a round of a trace (tree, mask, kept path), a whole run, or a tree from its own JSON."""
    suffix = Path(output).suffix.lower()
    if suffix in LATER:
        raise click.UsageError(
            f"{LATER[suffix]} comes with the inspector, which this version has not; use .svg or .txt."
        )
    if suffix not in WRITTEN:
        raise click.UsageError(f"the output {output!r} must end in {' or '.join(WRITTEN)}.")
    data = read_trace_json(trace)
    if isinstance(data, dict) and "parents" in data and "rounds" not in data:
        text, shown = _tree(data, suffix, trace), "the tree"
    else:
        text, shown = _run(load_run(trace), suffix, which)
    write_whole(output, text if text.endswith("\n") else text + "\n")
    if json_file is not None:
        write_json({"output": output, "shows": shown, "bytes": len(text.encode())}, json_file)
    if json_file != "-":
        click.echo(f"wrote {output}: {shown}")


def _tree(data: dict[str, Any], suffix: str, trace: str) -> str:
    try:
        tree = DraftTree.from_json(data)
    except (KdnbError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{trace!r}: {str(error).rstrip('.')}; it is no kdnb tree.") from None
    return tree_svg(tree) if suffix == ".svg" else draw_tree(tree, max_rows=tree.num_nodes)


def _run(run: Run, suffix: str, which: str | None) -> tuple[str, str]:
    if not run.rounds:
        raise TraceError("the trace has no rounds to draw; decode more than one token.")
    if which is None and suffix == ".svg":
        number = max(range(len(run.rounds)), key=lambda index: run.rounds[index].num_accepted)
    elif which in (None, "all"):
        if suffix == ".svg":
            return run_svg(run), "all rounds"
        pages = [draw_round(step, run.token_text) for step in run.rounds]
        return "\n\n".join([run_table(run), rounds_table(run), *pages]), "all rounds"
    else:
        number = _number(which or "", len(run.rounds))
    step = run.rounds[number]
    draw = round_svg if suffix == ".svg" else draw_round
    return draw(step, run.token_text), f"round {number}"


def _number(which: str, count: int) -> int:
    if which.isdigit() and int(which) < count:
        return int(which)
    raise click.BadParameter(f"{which!r} is no round; use 0 to {count - 1}, or all.", param_hint="--round")

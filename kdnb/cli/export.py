"""`kdnb export`: a trace as a picture."""

from pathlib import Path

import click

from kdnb.cli.options import json_option, write_json
from kdnb.errors import TraceError
from kdnb.run import Run
from kdnb.view.svg import round_svg
from kdnb.view.text import draw_round, run_table

LATER = {".html": "HTML", ".png": "PNG"}


@click.command()
@click.argument("trace", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="Where to: .svg or .txt.")
@click.option(
    "--round", "number", type=int, default=None, help="Which round, from 0. Default: the one that kept most."
)
@json_option
def export(trace: str, output: str, number: int | None, json_file: str | None) -> None:
    """Draw a round of a trace as SVG (tree, mask and kept path), or all rounds as text."""
    run = Run.load(trace)
    path = Path(output)
    if path.suffix in LATER:
        raise click.UsageError(f"{LATER[path.suffix]} is not written by this version; use .svg or .txt.")
    if path.suffix not in (".svg", ".txt"):
        raise click.UsageError(f"the output ends in {path.suffix!r}; use .svg or .txt.")
    if not run.rounds:
        raise TraceError("the trace has no rounds to draw; decode more than one token.")
    if number is None:
        number = max(range(len(run.rounds)), key=lambda index: run.rounds[index].num_accepted)
    if not 0 <= number < len(run.rounds):
        raise click.BadParameter(f"the trace has rounds 0 to {len(run.rounds) - 1}.", param_hint="--round")
    if path.suffix == ".svg":
        text = round_svg(run.rounds[number], run.token_text)
    else:
        pages = [run_table(run), *(draw_round(step, run.token_text) for step in run.rounds)]
        text = "\n\n".join(pages) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{output!r} cannot be written: {error.strerror}.") from None
    if json_file is not None:
        write_json({"output": output, "round": number, "bytes": len(text.encode())}, json_file)
    else:
        click.echo(f"wrote {output} (round {number})")

"""`kdnb view`: step through a trace in a terminal."""

import os

import click

from kdnb.cli.options import json_option, write_json
from kdnb.run import Run
from kdnb.view.text import draw_round, run_table

KEYS = "n next, p previous, m mask on/off, q quit"


@click.command()
@click.argument("trace", type=click.Path())
@click.option("--round", "number", type=int, default=None, help="Show only this round, from 0.")
@click.option("--no-mask", is_flag=True, help="Leave the masks out.")
@json_option
def view(trace: str, number: int | None, no_mask: bool, json_file: str | None) -> None:
    """Step through a trace that `kdnb generate --json FILE` wrote.

    On a terminal one round at a time (n, p, m, q); into a pipe or file all rounds, one after the other.
    """
    run = Run.load(trace)
    if number is not None and not 0 <= number < len(run.rounds):
        raise click.BadParameter(f"the trace has rounds 0 to {len(run.rounds) - 1}.", param_hint="--round")
    if json_file is not None:
        chosen = run.rounds if number is None else [run.rounds[number]]
        write_json([step.to_json() for step in chosen], json_file)
        return
    click.echo(run_table(run))
    terminal = click.get_text_stream("stdout").isatty() and click.get_text_stream("stdin").isatty()
    color = terminal and "NO_COLOR" not in os.environ
    if number is not None or not terminal or not run.rounds:
        for index in range(len(run.rounds)) if number is None else [number]:
            click.echo(_page(run, index, color, not no_mask))
        return
    _step(run, color, not no_mask)


def _page(run: Run, index: int, color: bool, mask: bool) -> str:
    head = f"\nround {index} of 0 to {len(run.rounds) - 1}, position {run.rounds[index].prefix_len}"
    return head + "\n" + draw_round(run.rounds[index], run.token_text, color=color, mask=mask)


def _step(run: Run, color: bool, mask: bool) -> None:
    index = 0
    while True:
        click.clear()
        click.echo(_page(run, index, color, mask))
        click.echo(f"\n{KEYS}")
        key = click.getchar()
        if key in ("q", "\x1b", "\x03", "\x04"):
            return
        if key in ("n", " ", "\r", "\x1b[C"):
            index = min(index + 1, len(run.rounds) - 1)
        elif key in ("p", "\x1b[D"):
            index = max(index - 1, 0)
        elif key == "m":
            mask = not mask

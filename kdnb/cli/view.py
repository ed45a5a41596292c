"""`kdnb view`: step through a trace in a terminal."""

import sys

import click

from kdnb.cli.options import json_option, load_run, write_json
from kdnb.cli.stream import ascii_only, use_color
from kdnb.run import Run
from kdnb.view.tables import run_table
from kdnb.view.text import draw_round

KEYS = "n next, p previous, m mask on/off, q quit"
LEAVE = ("q", "Q", "\x1b", "\x03", "\x04")
FORWARD = ("n", "N", " ", "\r", "\n", "\x1b[C", "\x1bOC", "\xe0M")  # the right arrow of each system
BACK = ("p", "P", "\x1b[D", "\x1bOD", "\xe0K")


@click.command()
@click.argument("trace", type=click.Path())
@click.option("--round", "number", type=int, default=None, help="Show only this round, from 0.")
@click.option("--no-mask", is_flag=True, help="Leave the masks out.")
@json_option
def view(trace: str, number: int | None, no_mask: bool, json_file: str | None) -> None:
    """Step through a trace that `kdnb generate --json FILE` wrote.

    On a terminal one round at a time (n, p, m, q); into a pipe or file all rounds, one after the other.
    """
    run = load_run(trace)
    if number is not None and not 0 <= number < len(run.rounds):
        raise click.BadParameter(f"the trace has rounds 0 to {len(run.rounds) - 1}.", param_hint="--round")
    if json_file is not None:
        chosen = run.rounds if number is None else [run.rounds[number]]
        write_json([step.to_json() for step in chosen], json_file)
        return
    click.echo(run_table(run))
    if number is None and run.rounds and _is_interactive():
        _step(run, not no_mask)
        return
    for index in range(len(run.rounds)) if number is None else [number]:
        click.echo(_page(run, index, not no_mask))


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _page(run: Run, index: int, mask: bool) -> str:
    step = run.rounds[index]
    drawn = draw_round(step, run.token_text, color=use_color(), mask=mask, ascii_only=ascii_only())
    return f"\nround {index} (0 to {len(run.rounds) - 1}), root at position {step.prefix_len}\n{drawn}"


def _step(run: Run, mask: bool) -> None:
    index = 0
    while True:
        click.clear()
        click.echo(_page(run, index, mask))
        click.echo(f"\n{KEYS}")
        key = click.getchar()
        if key in LEAVE:
            return
        if key in FORWARD:
            index = min(index + 1, len(run.rounds) - 1)
        elif key in BACK:
            index = max(index - 1, 0)
        elif key in ("m", "M"):
            mask = not mask

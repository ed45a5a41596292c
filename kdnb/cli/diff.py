"""`kdnb diff`: where two runs part."""

from dataclasses import asdict

import click

from kdnb.cli.options import json_option, load_run, write_json
from kdnb.run import Run
from kdnb.view.compare import Difference, first_difference, first_token_difference

TOKEN_FIELDS = ("prompt_ids", "token_ids", "next_ids", "bonus_id")


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@click.option("--tokens", is_flag=True, help="Compare only what was emitted, not how it came about.")
@json_option
def diff(first: str, second: str, tokens: bool, json_file: str | None) -> None:
    """Name the first round and node where two traces part; exit status 1 if they differ.

    Compares prompts, trees (tokens, parents, scores to 1e-4), the target's choices, accepted paths, bonus
    tokens and the emitted tokens; not times.
    """
    a, b = load_run(first), load_run(second)
    found = first_token_difference(a, b) if tokens else first_difference(a, b)
    if json_file is not None:
        write_json({"equal": found is None, "difference": found and asdict(found)}, json_file)
    if json_file != "-":
        click.echo("equal" if found is None else describe(found, a, b, first, second))
    if found is not None:
        raise click.exceptions.Exit(1)


def describe(found: Difference, a: Run, b: Run, first: str, second: str) -> str:
    """A difference in words, tokens with their text."""
    if found.field == "rounds":
        return (
            f"the first {found.place} rounds are equal, but {first} has {found.first} rounds "
            f"and {second} has {found.second}"
        )
    where = "" if found.round is None else f"round {found.round}, "
    if found.node is not None:
        where += f"node {found.node}: {found.field}"
    elif found.round is not None:
        where += found.field
    else:
        where += f"{found.field}[{found.place}]"
    ours, theirs = _value(found, found.first, a), _value(found, found.second, b)
    return f"{where} is {ours} in {first}, {theirs} in {second}"


def _value(found: Difference, value: float | None, run: Run) -> str:
    if value is None:
        return "not there"
    if found.field in TOKEN_FIELDS and isinstance(value, int) and value >= 0:
        text = run.token_text(value)
        return str(value) if text == str(value) else f"{value} ({text})"
    return str(value)

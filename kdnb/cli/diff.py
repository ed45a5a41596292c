"""`kdnb diff`: where two runs part."""

from typing import Any

import click
import numpy as np

from kdnb.cli.options import json_option, write_json
from kdnb.run import Run
from kdnb.trace import RoundTrace


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path())
@json_option
def diff(first: str, second: str, json_file: str | None) -> None:
    """Name the first round and node where two traces part; exit status 1 if they differ.

    Compares prompts, trees (tokens, parents), the target's choices, accepted paths and bonus tokens; not
    times, and scores only to 1e-4.
    """
    parting = first_difference(Run.load(first), Run.load(second))
    if json_file is not None:
        write_json({"equal": parting is None, "difference": parting}, json_file)
    else:
        click.echo("equal" if parting is None else parting["message"])
    if parting is not None:
        raise click.exceptions.Exit(1)


def first_difference(a: Run, b: Run) -> dict[str, Any] | None:
    """Where two runs part: {"round", "field", "node", "message"}, or None where they are equal."""
    if a.prompt_ids.tolist() != b.prompt_ids.tolist():
        return _found(None, "prompt_ids", _first(a.prompt_ids, b.prompt_ids), a.prompt_ids, b.prompt_ids)
    for index, (ours, theirs) in enumerate(zip(a.rounds, b.rounds, strict=False)):
        for field, x, y in _fields(ours, theirs):
            node = _first(x, y)
            if node is not None:
                return _found(index, field, node, x, y)
    if a.token_ids.tolist() != b.token_ids.tolist():
        return _found(None, "token_ids", _first(a.token_ids, b.token_ids), a.token_ids, b.token_ids)
    if len(a.rounds) != len(b.rounds):
        message = f"one run has {len(a.rounds)} rounds, the other {len(b.rounds)}"
        return {
            "round": min(len(a.rounds), len(b.rounds)),
            "field": "rounds",
            "node": None,
            "message": message,
        }
    return None


def _fields(ours: RoundTrace, theirs: RoundTrace) -> list[tuple[str, Any, Any]]:
    fields: list[tuple[str, Any, Any]] = [
        ("prefix_len", np.array([ours.prefix_len]), np.array([theirs.prefix_len])),
        ("token_ids", ours.tree.token_ids, theirs.tree.token_ids),
        ("parents", ours.tree.parents, theirs.tree.parents),
    ]
    if ours.tree.scores is not None and theirs.tree.scores is not None:
        fields.append(("scores", ours.tree.scores, theirs.tree.scores))
    if ours.next_ids is not None and theirs.next_ids is not None:
        fields.append(("next_ids", ours.next_ids, theirs.next_ids))
    fields.append(("accepted", ours.accepted, theirs.accepted))
    fields.append(("bonus_id", np.array([ours.bonus_id]), np.array([theirs.bonus_id])))
    return fields


def _first(x: Any, y: Any) -> int | None:
    """Index of the first difference, or None."""
    shared = min(len(x), len(y))
    tolerance = 1e-4 if np.issubdtype(x.dtype, np.floating) else 0
    wrong = np.flatnonzero(~(np.abs(x[:shared] - y[:shared]) <= tolerance))
    if wrong.size:
        return int(wrong[0])
    return shared if len(x) != len(y) else None


def _found(index: int | None, field: str, node: int | None, x: Any, y: Any) -> dict[str, Any]:
    place = 0 if node is None else node
    ours = x[place].item() if place < len(x) else "nothing"
    theirs = y[place].item() if place < len(y) else "nothing"
    where = f"round {index}, " if index is not None else ""
    message = f"{where}{field}[{place}]: {ours} in the first, {theirs} in the second"
    return {"round": index, "field": field, "node": node, "message": message}

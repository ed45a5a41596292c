"""`kdnb demo`: the main job on the shipped model, in a terminal."""

from typing import Any

import click

from kdnb.cli.options import json_option, write_json
from kdnb.cli.stream import Streamer, ascii_only, note, use_color
from kdnb.decoding import Decoding
from kdnb.drafters import Drafter, load_drafter
from kdnb.loop import generate, start
from kdnb.model import Target, load_target
from kdnb.run import Run
from kdnb.settings import Settings
from kdnb.trace import RoundTrace
from kdnb.view.glyphs import Ink
from kdnb.view.tables import table
from kdnb.view.text import draw_round

PROMPT = "class Reader:\n\tdef __init__(self, fp):\n\t\tself.fp = fp\n\n\tdef read(self, size=-1):\n\t\tif "
NUM_TOKENS = 160
REPEATS = 3  # of each decoding, in turn; the quickest counts


@click.command()
@click.option("--prompt", default=PROMPT, help="Text to continue. Default: a few lines of Python.")
@click.option("--max-new-tokens", type=int, default=NUM_TOKENS, show_default=True)
@click.option("--node-budget", type=int, default=16, show_default=True, help="Drafted nodes per tree.")
@json_option
def demo(prompt: str, max_new_tokens: int, node_budget: int, json_file: str | None) -> None:
    """Decode with the shipped target and its drafter: see a tree, its mask and the kept path.

    Then the same tokens are decoded plainly, to show that they are equal and what the trees saved.
    """
    quiet = json_file == "-"
    target = load_target("tiny")
    drafter = load_drafter("tiny", target)
    choices: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "node_budget": node_budget,
        "stop_ids": (),
    }
    decoding = start(target, prompt, drafter, Settings(trace="full", **choices))
    if quiet:
        for _ in decoding:
            pass
    else:
        _show(decoding, prompt)
    plain, trees = _race(target, prompt, drafter, choices)
    equal = plain.token_ids.tolist() == trees.token_ids.tolist()
    if not quiet:
        click.echo(_comparison(plain, trees, equal))
        click.echo("\nNext: kdnb generate --prompt TEXT --json run.json --trace full; kdnb view run.json")
    if json_file is not None:
        first = decoding.rounds[0].to_json() if decoding.rounds else None
        result = {
            "prompt": prompt,
            "text": trees.text,
            "same_tokens": equal,
            "speedup": _wall_us(plain) / _wall_us(trees),
            "ddtree": trees.summary(),
            "plain": plain.summary(),
            "round": first,
        }
        write_json({name: value for name, value in result.items() if value is not None}, json_file)
    if not equal:
        raise click.ClickException("draft-tree decoding and plain decoding emitted different tokens.")


def _show(decoding: Decoding, prompt: str) -> None:
    """Draw the first round, then let the text run on."""
    target = decoding.target
    ink = Ink(use_color())
    config = target.config
    click.echo(
        f"{ink.bold('kdnb demo')}: {target.name!r}, {config.num_hidden_layers} layers of MLA"
        f" and {config.n_routed_experts} experts, {target.mapped_bytes / 1e6:.1f} MB; its drafter proposes "
        f"{decoding.drafter.max_depth if decoding.drafter else 0} tokens at once.\n"
    )
    stream = Streamer(target)
    shown = 0
    for index, step in enumerate(decoding):
        if index == 0:
            _draw(step, target, ink)
            hint = ", accepted drafts in green" if use_color() else ""
            click.echo(ink.bold(f"\nThe whole text{hint}:\n"))
            click.echo(prompt, nl=False)
            click.echo(ink.bonus(stream.push(decoding.token_ids[0])), nl=False)
            shown = 1
        for token_id in decoding.token_ids[shown:]:
            is_bonus = shown == len(decoding.token_ids) - 1 and len(step.emitted) == step.num_emitted
            piece = stream.push(token_id)
            click.echo(piece if is_bonus else ink.kept(piece), nl=False)
            shown += 1
    click.echo(f"{stream.rest()}\n")
    counts = " ".join(str(step.num_accepted) for step in decoding.rounds)
    click.echo(f"drafts accepted in each round: {counts or 'there was no round'}\n")


def _draw(step: RoundTrace, target: Target, ink: Ink) -> None:
    drafted = step.tree.num_nodes - 1
    click.echo(
        f"{ink.bold('Round 0.')} The drafter's {drafted} best guesses form a tree; one target forward "
        f"checks all of them.\nBehind the arrow stands what the target itself chose; along its choices "
        f"{step.num_accepted} drafts are accepted (*).\n"
    )
    token_text = target.tokenizer.token_text if target.tokenizer else None
    click.echo(draw_round(step, token_text, color=use_color(), ascii_only=ascii_only()))


def _race(target: Target, prompt: str, drafter: Drafter, choices: dict[str, Any]) -> tuple[Run, Run]:
    """The quickest of some plain and some draft-tree decodings."""
    plain: list[Run] = []
    trees: list[Run] = []
    for _ in range(REPEATS):
        plain.append(generate(target, prompt, **choices))
        trees.append(generate(target, prompt, drafter, **choices))
        if plain[-1].stop_reason == "interrupted" or trees[-1].stop_reason == "interrupted":
            raise KeyboardInterrupt
        if sum(map(_wall_us, plain + trees)) > 2e6:  # a slow machine: once is enough
            note("this machine is slow: measured once")
            break
    return min(plain, key=_wall_us), min(trees, key=_wall_us)


def _comparison(plain: Run, trees: Run, equal: bool) -> str:
    rows = [["", "plain decoding", "draft trees"]]
    rows.append(["new tokens", *(str(len(run.token_ids)) for run in (plain, trees))])
    rows.append(["target forwards", *(str(len(run.rounds) + 1) for run in (plain, trees))])
    emitted = (run.summary().get("mean_emitted_per_round", 0.0) for run in (plain, trees))
    rows.append(["emitted per round", *(f"{mean:.2f}" for mean in emitted)])
    rows.append(["milliseconds", *(f"{_wall_us(run) / 1e3:.0f}" for run in (plain, trees))])
    rows.append(["same tokens", "", "yes" if equal else "NO"])
    return table(rows)


def _wall_us(run: Run) -> float:
    return run.wall_us or 1.0

"""`kdnb demo`: the main job on the shipped model, in a terminal."""

import itertools
import time
from typing import Any

import click

from kdnb.cli.options import json_option, note, write_json
from kdnb.drafters import load_drafter
from kdnb.loop import generate, start
from kdnb.model import load_target
from kdnb.run import Run
from kdnb.settings import Settings
from kdnb.view.text import draw_round, run_table

PROMPT = "def read(self, size):\n\tif size"
NUM_TOKENS = 160
REPEATS = 3  # of each decoding; the quickest counts


@click.command()
@click.option("--prompt", default=PROMPT, help="Text to continue.")
@click.option("--max-new-tokens", type=int, default=NUM_TOKENS, show_default=True)
@click.option("--node-budget", type=int, default=16, show_default=True)
@json_option
def demo(prompt: str, max_new_tokens: int, node_budget: int, json_file: str | None) -> None:
    """Decode with the shipped target and its drafter: see a tree, its mask and the kept path.

    Then the same text is decoded plainly, to show that the tokens are equal and what the tree saved.
    """
    quiet = json_file == "-"
    say: Any = (lambda *_args, **_options: None) if quiet else click.echo
    note("loading the shipped target and its DFlash drafter ...")
    target = load_target("tiny")
    drafter = load_drafter("tiny", target)
    settings = {"max_new_tokens": max_new_tokens, "node_budget": node_budget, "stop_ids": ()}
    color = click.get_text_stream("stdout").isatty()

    steps = itertools.islice(start(target, prompt, drafter, Settings(trace="full", **settings)), 4)  # type: ignore[arg-type]
    step = max(steps, key=lambda one: one.num_accepted, default=None)
    text_of = target.tokenizer.token_text if target.tokenizer else str
    if step is not None:
        say(f"\nOne of the first rounds of {prompt!r}: node, token, draft probability -> target's choice.")
        say("The path that the target agrees with is marked *.\n")
        say(draw_round(step, text_of, color=color))

    say("\nThe whole text, prompt first:\n")
    say(prompt, nl=False)
    fastest = _fastest(target, prompt, drafter, settings)
    say(f"{fastest.text}\n")
    plain = _fastest(target, prompt, None, settings)
    equal = plain.token_ids.tolist() == fastest.token_ids.tolist()
    speed = _seconds(plain) / _seconds(fastest)
    say(run_table(fastest))
    say(
        f"\nplain decoding: {len(plain.token_ids)} tokens in {_seconds(plain) * 1e3:.0f} ms, "
        f"{len(plain.rounds) + 1} target forwards\n"
        f"draft trees:    {len(fastest.token_ids)} tokens in {_seconds(fastest) * 1e3:.0f} ms, "
        f"{len(fastest.rounds) + 1} target forwards, {speed:.2f} x as fast\n"
        f"same tokens:    {'yes' if equal else 'NO'}"
    )
    if json_file is not None:
        write_json(
            {
                "prompt": prompt,
                "text": fastest.text,
                "same_tokens": equal,
                "speedup": speed,
                "ddtree": fastest.summary(),
                "plain": plain.summary(),
                "round": None if step is None else step.to_json(),
            },
            json_file,
        )
    if not equal:
        raise click.ClickException("draft-tree decoding and plain decoding emitted different tokens.")


def _fastest(target: Any, prompt: str, drafter: Any, settings: dict[str, Any]) -> Run:
    began = time.perf_counter()
    runs = []
    for _ in range(REPEATS):
        runs.append(generate(target, prompt, drafter, **settings))
        if time.perf_counter() - began > 2:  # a slow machine: once is enough
            break
    return min(runs, key=_seconds)


def _seconds(run: Run) -> float:
    return (run.wall_us or 0.0) / 1e6

"""`kdnb generate`: decode a continuation."""

from typing import Any, Literal

import click

from kdnb.cli.options import (
    json_option,
    model_options,
    open_drafter,
    open_policy,
    open_target,
    write_json,
)
from kdnb.cli.stream import Patience, Streamer, note
from kdnb.errors import TokenError
from kdnb.loop import generate as decode
from kdnb.policies import BUILT_IN
from kdnb.view.tables import run_table


@click.command()
@model_options
@click.option("--prompt", help="Text to continue.")
@click.option("--prompt-ids", help="Token ids to continue, separated by commas.")
@click.option("--max-new-tokens", type=int, default=64, show_default=True)
@click.option("--node-budget", type=int, default=32, show_default=True, help="Drafted nodes per tree.")
@click.option("--policy", default="ddtree", show_default=True, help=f"{', '.join(BUILT_IN)}, or module:attr.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=int, default=0, help="Sample among this many tokens; 0 is all.")
@click.option(
    "--top-p", type=float, default=1.0, help="Sample among the most probable tokens up to this sum."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--stop-ids", default=None, help="Ids to stop after, or none. Default: the checkpoint's.")
@click.option("--trace", type=click.Choice(["light", "full"]), default="light", show_default=True)
@json_option
def generate(
    target: str,
    drafter: str | None,
    backend: str,
    dtype: str,
    deterministic: bool,
    expert_cache_bytes: int | None,
    prompt: str | None,
    prompt_ids: str | None,
    policy: str,
    stop_ids: str | None,
    trace: Literal["light", "full"],
    json_file: str | None,
    **settings: Any,
) -> None:
    """Continue a prompt, losslessly, and say how it went.

    The text is streamed to standard output; with --json FILE the whole run (tokens, rounds, summary) is
    written as well, with --json alone nothing but the JSON.
    """
    asked: str | list[int] | None = prompt
    if prompt_ids is not None:
        asked = _ids(prompt_ids, "--prompt-ids")
    if asked is None or None not in (prompt, prompt_ids):
        raise click.UsageError("Give one of --prompt and --prompt-ids.")
    stops = None if stop_ids is None else [] if stop_ids == "none" else _ids(stop_ids, "--stop-ids")
    model = open_target(target, backend, dtype, deterministic, expert_cache_bytes)
    draft_model = open_drafter(drafter, model)
    quiet = json_file == "-"
    stream = Streamer(model)
    with Patience("reading the prompt") as patience:
        count = 0

        def show(token_id: int) -> None:
            nonlocal count
            count += 1
            if quiet:
                patience.rename(f"decoding: {count} of {settings['max_new_tokens']} tokens")
            else:
                patience.stop()
                click.echo(stream.push(token_id), nl=False)

        run = decode(
            model,
            asked,
            draft_model,
            policy=open_policy(policy),
            trace=trace,
            stop_ids=stops,
            on_token=show,
            **settings,
        )
    if not quiet:
        click.echo(stream.rest())
        note(f"\n{run_table(run)}")
    if json_file is not None:
        write_json(run.to_json(), json_file)
    if run.stop_reason == "interrupted":
        raise KeyboardInterrupt


def _ids(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise TokenError(f"{option} is {text!r}; write integers separated by commas.") from None

"""`kdnb bench`: measured speed on this machine."""

import os
import sys
from pathlib import Path

import click

from kdnb.bench import measure
from kdnb.cli.demo import PROMPT
from kdnb.cli.options import json_option, model_options, note, open_drafter, open_target, write_json
from kdnb.shipped import SHIPPED, shipped_folder


@click.command()
@model_options
@click.option("--max-new-tokens", type=int, default=128, show_default=True)
@click.option("--node-budget", type=int, default=16, show_default=True)
@click.option(
    "--prefill", "prefill_len", type=int, default=512, show_default=True, help="Rows of the timed prefill."
)
@click.option(
    "--repeat", type=int, default=7, show_default=True, help="Times each is measured; medians count."
)
@click.option(
    "--threads", type=int, default=None, help="Threads of numpy's BLAS and of torch. Default: as they choose."
)
@json_option
def bench(
    target: str,
    drafter: str | None,
    backend: str,
    dtype: str,
    deterministic: bool,
    expert_cache_bytes: int | None,
    max_new_tokens: int,
    node_budget: int,
    prefill_len: int,
    repeat: int,
    threads: int | None,
    json_file: str | None,
) -> None:
    """Measure prefill, plain and draft-tree decoding, side by side with transformers if installed.

    All are run in turn, on the same checkpoint, prompt and threads; medians count.
    """
    if threads is not None and os.environ.get("OMP_NUM_THREADS") != str(threads):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(threads)  # read once by the libraries, so start over
        os.execv(sys.executable, [sys.executable, "-m", "kdnb", *sys.argv[1:]])
    model = open_target(target, backend, dtype, deterministic, expert_cache_bytes)
    text = [token_id % model.config.vocab_size for token_id in PROMPT.encode()]
    result = measure(
        model,
        open_drafter(drafter, model),
        model.tokenizer.encode(PROMPT) if model.tokenizer else text,
        max_new_tokens=max_new_tokens,
        node_budget=node_budget,
        prefill_len=prefill_len,
        repeat=repeat,
        folder=shipped_folder(target, "target") if target in SHIPPED else Path(target),
        say=note,
    )
    if json_file is not None:
        write_json(result, json_file)
        return
    machine = result["machine"]
    click.echo(f"{machine['processor']}, {machine['cores']} cores, {machine['versions']}")
    for row in result["rows"]:
        click.echo(f"  {row['name']:<28} {row['tokens_per_second']:>10.1f} tokens/s")
    for name, ratio in result["ratios"].items():
        click.echo(f"  {name:<28} {ratio:>10.2f} x")
    for name, summary in result["summaries"].items():
        stages = ", ".join(f"{s} {us / summary['num_rounds']:.0f}" for s, us in summary["times_us"].items())
        click.echo(f"  {name}: {summary['mean_emitted_per_round']:.2f} emitted a round; us a round: {stages}")
    click.echo(f"  same tokens everywhere: {'yes' if result['same_tokens'] else 'NO'}")
    if result["peak_bytes"]:
        click.echo(f"  peak memory of kdnb: {result['peak_bytes'] / 2**20:.0f} MiB")

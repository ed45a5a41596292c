"""`kdnb bench`: measured speed on this machine."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from kdnb.bench import measure
from kdnb.cli.demo import PROMPT
from kdnb.cli.options import json_option, model_options, open_drafter, open_target, write_json
from kdnb.cli.stream import Patience, note, restart
from kdnb.shipped import SHIPPED, shipped_folder
from kdnb.trace import STAGES
from kdnb.view.tables import table

KERNELS = ("top_k", "tree_build", "argmax", "tree_accept", "cache_compact")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


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
@click.option("--no-transformers", is_flag=True, help="Leave transformers out even if it is installed.")
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
    no_transformers: bool,
    json_file: str | None,
) -> None:
    """Measure prefill, plain and draft-tree decoding, side by side with transformers if installed.

    All are run in turn, on the same checkpoint, prompt and threads; medians count. With --backend cuda: the
    golden pair in float32 and a random model of DeepSeek-V2-Lite's shape in bfloat16, by stage.
    """
    if threads is not None and any(os.environ.get(name) != str(threads) for name in THREADS):
        for name in THREADS:
            os.environ[name] = str(threads)  # read once by the libraries, so start over
        restart([sys.executable, "-m", "kdnb", *sys.argv[1:]])
    if backend == "cuda":
        from kdnb.backends.cuda_device import CudaDevice
        from kdnb.gpu_bench import measure_gpu

        found = measure_gpu(
            CudaDevice(),
            max_new_tokens=max_new_tokens,
            repeat=repeat,
            peer=not no_transformers,
            say=lambda line: click.echo(line, err=True),
        )
        if json_file is not None:
            write_json(found, json_file)
        if json_file != "-":
            click.echo(_gpu_report(found))
        return
    model = open_target(target, backend, dtype, deterministic, expert_cache_bytes)
    text = [token_id % model.config.vocab_size for token_id in PROMPT.encode()]
    draft_model = open_drafter(drafter, model)
    with Patience("measuring") as patience:

        def say(step: str) -> None:
            patience.beat()
            note(step)
            patience.rename(step.removesuffix(" ..."))

        result = measure(
            model,
            draft_model,
            model.tokenizer.encode(PROMPT) if model.tokenizer else text,
            max_new_tokens=max_new_tokens,
            node_budget=node_budget,
            prefill_len=prefill_len,
            repeat=repeat,
            folder=None if no_transformers else _folder(target),
            say=say,
        )
    if json_file is not None:
        write_json(result, json_file)
    if json_file != "-":
        click.echo(_report(result))


def _folder(target: str) -> Path:
    return shipped_folder(target, "target") if target in SHIPPED else Path(target)


def _gpu_report(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [f"{machine['gpu']}, driver {machine['driver']}, NVRTC {machine['nvrtc']}, {versions}", ""]
    for name, model in result["models"].items():
        rows = [[name, "tokens/s", "us per round", "host sees", *STAGES]]
        for budget, row in {"plain": model["plain"], **model["budgets"]}.items():
            stages = (f"{row['stages_us'][stage]:.1f}" for stage in STAGES)
            speed = f"{row['tokens_per_second']:.0f}" if "tokens_per_second" in row else ""
            rows.append([str(budget), speed, f"{row['replay_us']:.0f}", f"{row['host_us']:.0f}", *stages])
        lines += [table(rows), ""]
        rows = [["kernels of a round, us", *KERNELS]]
        for budget, row in model["budgets"].items():
            rows.append([str(budget), *(f"{row['kernels_us'][name]:.1f}" for name in KERNELS)])
        lines += [table(rows), ""]
    for name, speed in result["peers"].items():
        lines.append(f"{name}: {speed} tokens/s")
    lines += [f"{name}: {ratio} x" for name, ratio in result["ratios"].items()]
    return "\n".join(lines)


def _report(result: dict[str, Any]) -> str:
    machine, settings = result["machine"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = ", ".join(f"{name}={value}" for name, value in machine["threads"].items())
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, python {machine['python']}, {versions}",
        f"threads: {threads or 'as the libraries choose'}; {settings['target']} on {settings['backend']}; "
        f"medians of {settings['repeat']}, all in turn",
        "",
    ]
    rows = [["", "tokens/s"]]
    rows += [[row["name"], f"{row['tokens_per_second']:.1f}"] for row in result["rows"]]
    lines += [table(rows), ""]
    if result["ratios"]:
        ratios = [[name, f"{ratio:.2f} x"] for name, ratio in result["ratios"].items()]
        lines += [table([["", "times as fast"], *ratios]), ""]
    summaries = result["summaries"]
    known = [s for s in (*STAGES, "round") if any(s in one.get("times_us", {}) for one in summaries.values())]
    stages = [["us per round", "emitted", *known]]
    for name, summary in summaries.items():
        if summary["num_rounds"]:
            times_us = summary.get("times_us", {})
            means = (times_us.get(stage, 0.0) / summary["num_rounds"] for stage in known)
            emitted = f"{summary['mean_emitted_per_round']:.2f}"
            stages.append([name, emitted, *(f"{mean:.0f}" for mean in means)])
    lines.append(table(stages))
    lines.append(f"\nsame tokens everywhere: {'yes' if result['same_tokens'] else 'NO'}")
    if "peak_bytes" in result:
        lines.append(f"peak memory of kdnb: {result['peak_bytes'] / 2**20:.0f} MiB")
    if "transformers" in result:
        lines.append(f"without transformers: {result['transformers']}")
    return "\n".join(lines)

"""Measured speed: plain and draft-tree decoding, beside transformers where it is installed."""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kdnb.drafters import Drafter
from kdnb.loop import generate
from kdnb.model import Target
from kdnb.run import Run


def measure(
    target: Target,
    drafter: Drafter | None,
    prompt_ids: list[int],
    *,
    max_new_tokens: int,
    node_budget: int,
    prefill_len: int,
    repeat: int,
    folder: Path | None = None,
    say: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Time everything in turn, several times, and take medians.

    Args:
        target: The target.
        drafter: Its drafter, or None for plain decoding only.
        prompt_ids: What to continue.
        max_new_tokens: Tokens per decoding.
        node_budget: Of the trees.
        prefill_len: Rows of the prefill that is timed; capped at the context.
        repeat: Times each measurement is taken.
        folder: The target's checkpoint, for transformers; None leaves it out.
        say: Called with a line before each slow step; the default says nothing.

    Returns:
        {"machine", "settings", "rows": [{"name", "tokens_per_second", "seconds"}], "ratios", "summaries",
        "same_tokens", "peak_bytes", "transformers"}. Speeds are medians; peak_bytes is this process's peak
        before transformers is loaded; "transformers" says why it was left out and is absent if it was not.
    """
    prefill_len = min(prefill_len, target.config.max_position_embeddings)
    rng = np.random.default_rng(0)
    wide = rng.integers(0, target.config.vocab_size, prefill_len).tolist()
    last: dict[str, Run] = {}

    def decode(name: str, who: Drafter | None) -> Callable[[], int]:
        def run() -> int:
            last[name] = generate(
                target, prompt_ids, who, max_new_tokens=max_new_tokens, node_budget=node_budget, stop_ids=()
            )
            return len(last[name].token_ids)

        return run

    def prefill() -> int:
        target.forward(wide, target.new_cache(prefill_len), logits="last")
        return prefill_len

    jobs: dict[str, Callable[[], int]] = {"kdnb plain": decode("kdnb plain", None)}
    if drafter is not None:
        jobs["kdnb draft trees"] = decode("kdnb draft trees", drafter)
    jobs[f"kdnb prefill {prefill_len}"] = prefill
    say("warming up kdnb ...")
    for job in jobs.values():
        job()
    peak_bytes = _peak_bytes()
    peer, why = (None, "left out") if folder is None else _open_peer(folder, say)
    if peer is not None:
        theirs = {
            "transformers plain": partial(peer.decode, prompt_ids, max_new_tokens),
            f"transformers prefill {prefill_len}": partial(peer.prefill, wide),
        }
        say("warming up transformers ...")
        try:
            for job in theirs.values():
                job()
            jobs |= theirs
        except Exception as error:  # whatever a third party's model raises, kdnb is still measured
            peer, why = None, f"transformers failed: {_one_line(error)}"
    say(f"timing {len(jobs)} things {repeat} times in turn ...")
    seconds = _interleaved(jobs, repeat)
    counts = {name: prefill_len if "prefill" in name else max_new_tokens for name in jobs}
    speeds = {name: counts[name] / float(np.median(times)) for name, times in seconds.items()}
    result = {
        "machine": _machine(peer),
        "settings": {
            "target": target.name,
            "backend": repr(target.backend),
            "drafter": None if drafter is None else repr(drafter),
            "prompt_tokens": len(prompt_ids),
            "prefill_tokens": prefill_len,
            "max_new_tokens": max_new_tokens,
            "node_budget": node_budget,
            "repeat": repeat,
        },
        "rows": [
            {"name": name, "tokens_per_second": round(speed, 1), "seconds": seconds[name]}
            for name, speed in speeds.items()
        ],
        "ratios": _ratios(speeds, prefill_len),
        "summaries": {name: run.summary() for name, run in last.items()},
        "same_tokens": _same_tokens(last, peer),
        "peak_bytes": peak_bytes,
        "transformers": why,
    }
    return {name: value for name, value in result.items() if value is not None}


def _interleaved(jobs: dict[str, Callable[[], int]], repeat: int) -> dict[str, list[float]]:
    """Seconds of each job, all of them in turn so that drift hits them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeat):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def _open_peer(folder: Path, say: Callable[[str], object]) -> "tuple[_Transformers | None, str | None]":
    """The checkpoint in transformers, or None and why not."""
    absent = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if absent:
        return None, f"{' and '.join(absent)} not installed"
    say("loading the same checkpoint in transformers ...")
    try:
        return _Transformers(folder), None
    except Exception as error:  # whatever a third party's loader raises, kdnb is still measured
        return None, f"transformers cannot load it: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _ratios(speeds: dict[str, float], prefill_len: int) -> dict[str, float]:
    pairs = {
        "draft trees / plain": ("kdnb draft trees", "kdnb plain"),
        "plain / transformers": ("kdnb plain", "transformers plain"),
        "prefill / transformers": (f"kdnb prefill {prefill_len}", f"transformers prefill {prefill_len}"),
    }
    return {
        name: round(speeds[over] / speeds[under], 2)
        for name, (over, under) in pairs.items()
        if over in speeds and under in speeds
    }


def _same_tokens(runs: dict[str, Run], peer: "_Transformers | None") -> bool:
    texts = [run.token_ids.tolist() for run in runs.values()]
    if peer is not None:
        texts.append(peer.last_ids)
    return all(text == texts[0] for text in texts)


class _Transformers:
    """The same checkpoint in transformers: greedy decoding with its cache, as few frills as possible."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._torch = torch
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.last_ids: list[int] = []

    @property
    def num_threads(self) -> int:
        """Threads that torch computes with."""
        return int(self._torch.get_num_threads())

    @staticmethod
    @contextmanager
    def _quietly() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # names of arguments that will change
            yield

    def decode(self, prompt_ids: list[int], max_new_tokens: int) -> int:
        with self._torch.inference_mode(), self._quietly():
            out = self._model(self._torch.tensor([prompt_ids]), use_cache=True, logits_to_keep=1)
            ids = [int(out.logits[0, -1].argmax())]
            while len(ids) < max_new_tokens:
                out = self._model(
                    self._torch.tensor([[ids[-1]]]), past_key_values=out.past_key_values, use_cache=True
                )
                ids.append(int(out.logits[0, -1].argmax()))
        self.last_ids = ids
        return len(ids)

    def prefill(self, token_ids: list[int]) -> int:
        with self._torch.inference_mode(), self._quietly():
            self._model(self._torch.tensor([token_ids]), use_cache=True, logits_to_keep=1)
        return len(token_ids)


def _machine(peer: "_Transformers | None") -> dict[str, Any]:
    names = ("numpy", "torch", "transformers")
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    threads = {
        key: os.environ[key] for key in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS") if key in os.environ
    }
    facts: dict[str, Any] = {} if peer is None else {"torch_threads": peer.num_threads}
    return {
        **facts,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": threads,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def _peak_bytes() -> int | None:
    """Peak resident memory of this process; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

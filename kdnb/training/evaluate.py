"""Measurements by kdnb itself: what trees of the shipped pair emit, on held-out prompts.

    python -m kdnb.training.evaluate build/tiny

Runs on any machine, without PyTorch; one process per core, one thread each.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kdnb.arrays import Float64
from kdnb.training.recipe import RECIPES, Recipe

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
RESAMPLES = 2000
BINS = 8
TEMPERATURES = (0.0, 1.0)
AT = 64  # the budget at which calibration and entropy are looked at, if it was measured


@dataclass(frozen=True)
class Setting:
    """One way to decode; budget 0 is plain decoding."""

    drafter: str
    policy: str
    node_budget: int
    temperature: float

    def __str__(self) -> str:
        plain = "plain" if self.node_budget == 0 else f"{self.drafter} {self.policy} {self.node_budget}"
        return f"{plain} T={self.temperature:g}"


@dataclass(frozen=True)
class Outcome:
    """What one decoding of one prompt did.

    Args:
        token_ids: The new tokens.
        emitted: Per round, the tokens it yielded.
        expected: Per round, the sum of the nodes' probabilities: the drafts it expected to keep.
        entropy: Per round, of the target's distribution after the root, in nats.
        seconds: Wall clock, the prompt's own forward left out.
    """

    token_ids: list[int]
    emitted: list[int]
    expected: list[float]
    entropy: list[float]
    seconds: float


def settings_of(recipe: Recipe) -> list[Setting]:
    """Everything that is measured: plain decoding, chain, DDTree by budget, and the n-gram drafter."""
    settings = []
    for temperature in TEMPERATURES:
        settings.append(Setting("dflash", "ddtree", 0, temperature))
        settings.append(Setting("dflash", "chain", recipe.drafter["block_size"] - 1, temperature))
        settings += [Setting("dflash", "ddtree", budget, temperature) for budget in recipe.budgets]
        settings.append(Setting("ngram", "ddtree", at_budget(recipe), temperature))
    return settings


def at_budget(recipe: Recipe) -> int:
    """The budget that details are given for."""
    return AT if AT in recipe.budgets else recipe.budgets[-1]


class Worker:
    """A process's own copy of the pair."""

    pair: tuple[Any, dict[str, Any]] | None = None

    @classmethod
    def open(cls, folder: Path) -> None:
        """Load target and drafters."""
        import kdnb

        target = kdnb.load_target(folder / "target")
        drafters = {
            "dflash": kdnb.load_drafter(folder / "drafter", target),
            "ngram": kdnb.load_drafter("ngram", target),
        }
        cls.pair = (target, drafters)

    @classmethod
    def decode(cls, job: tuple[Setting, list[int], int, int]) -> Outcome:
        """Decode one prompt: setting, prompt_ids, max_new_tokens, seed."""
        import kdnb

        assert cls.pair is not None
        target, drafters = cls.pair
        setting, prompt_ids, max_new_tokens, seed = job
        run = kdnb.generate(
            target,
            prompt_ids,
            drafters[setting.drafter] if setting.node_budget else None,
            max_new_tokens=max_new_tokens,
            node_budget=setting.node_budget,
            policy=setting.policy,
            temperature=setting.temperature,
            seed=seed,
        )
        text = [*prompt_ids, *run.token_ids.tolist()]
        logits = target.logits(text).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        entropy = -(np.exp(log_probs) * log_probs).sum(axis=1)
        scores = [step.tree.scores for step in run.rounds]
        return Outcome(
            token_ids=run.token_ids.tolist(),
            emitted=[step.num_emitted for step in run.rounds],
            expected=[0.0 if s is None else float(np.exp(s[1:]).sum()) for s in scores],
            entropy=[float(entropy[step.prefix_len]) for step in run.rounds],
            seconds=((run.wall_us or 0.0) - (run.prefill_us or 0.0)) / 1e6,
        )


def per_round(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean tokens emitted per round, with a 95 % interval by resampling prompts."""
    tokens = np.array([sum(outcome.emitted) for outcome in outcomes], dtype=np.float64)
    rounds = np.array([len(outcome.emitted) for outcome in outcomes], dtype=np.float64)
    drawn = np.random.default_rng(0).integers(0, len(outcomes), (RESAMPLES, len(outcomes)))
    means = tokens[drawn].sum(axis=1) / np.maximum(rounds[drawn].sum(axis=1), 1)
    low, high = np.quantile(means, [0.025, 0.975])
    mean = tokens.sum() / max(rounds.sum(), 1)
    return {"mean": round(float(mean), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def by_bin(key: Float64, values: dict[str, Float64], bins: int) -> list[dict[str, float]]:
    """Means of values over rounds sorted by key and cut into equal bins."""
    order = np.argsort(key, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return [
        {name: round(float(value[part].mean()), 3) for name, value in values.items()} | {"rounds": len(part)}
        for part in parts
    ]


def rounds_of(outcomes: Sequence[Outcome]) -> tuple[Float64, Float64, Float64]:
    """Kept drafts, expected drafts and entropy of all rounds: float64 [rounds] each."""
    kept = [count - 1 for outcome in outcomes for count in outcome.emitted]
    expected = [value for outcome in outcomes for value in outcome.expected]
    entropy = [value for outcome in outcomes for value in outcome.entropy]
    return tuple(np.array(v, dtype=np.float64) for v in (kept, expected, entropy))  # type: ignore[return-value]


def repeated_share(texts: Sequence[Sequence[int]], n: int = 4) -> float:
    """Share of n-grams that stood earlier in the same text, mean over texts."""
    shares = []
    for ids in texts:
        grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
        if grams:
            shares.append(1 - len(set(grams)) / len(grams))
    return round(float(np.mean(shares)), 4) if shares else 0.0


def evaluate(folder: Path, recipe: Recipe, workers: int | None = None) -> dict[str, Any]:
    """Decode all prompts in all settings and sum up.

    Args:
        folder: Holds target, drafter and prompts.json (prompts and, for each, the text that follows).
        recipe: Says which settings.
        workers: Processes; None is one per core.

    Returns:
        A JSON object.
    """
    began = time.monotonic()
    held_out = json.loads((folder / "prompts.json").read_text(encoding="utf-8"))
    settings = settings_of(recipe)
    jobs = [
        (setting, prompt, recipe.new_tokens, seed)
        for setting in settings
        for seed, prompt in enumerate(held_out["prompts"])
    ]
    for name in THREADS:  # read by the workers' BLAS when they start
        os.environ[name] = "1"
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=Worker.open, initargs=(folder,)
    ) as pool:
        results = list(pool.map(Worker.decode, jobs, chunksize=2))
    count = len(held_out["prompts"])
    by_setting = {s: results[i * count : (i + 1) * count] for i, s in enumerate(settings)}
    return _sum_up(by_setting, recipe, held_out["texts"]) | {"seconds": round(time.monotonic() - began, 1)}


def _sum_up(
    by_setting: dict[Setting, list[Outcome]], recipe: Recipe, texts: list[list[int]]
) -> dict[str, Any]:
    report: dict[str, Any] = {"emitted_per_round": {}, "tokens_per_second": {}, "texts_differ": {}}
    for setting, outcomes in by_setting.items():
        plain = by_setting[Setting("dflash", "ddtree", 0, setting.temperature)]
        report["emitted_per_round"][str(setting)] = per_round(outcomes)
        tokens, seconds = sum(len(o.token_ids) for o in outcomes), sum(o.seconds for o in outcomes)
        report["tokens_per_second"][str(setting)] = round(tokens / max(seconds, 1e-9), 1)
        differ = sum(a.token_ids != b.token_ids for a, b in zip(outcomes, plain, strict=True))
        report["texts_differ"][str(setting)] = differ  # near-ties: see README, lossless
    for temperature in TEMPERATURES:
        kept, expected, entropy = rounds_of(
            by_setting[Setting("dflash", "ddtree", at_budget(recipe), temperature)]
        )
        values = {"expected": expected, "kept": kept, "entropy": entropy}
        report[f"calibration T={temperature:g}"] = by_bin(expected, values, BINS)
        report[f"by_entropy_quartile T={temperature:g}"] = by_bin(entropy, values, 4)
        outcomes = by_setting[Setting("dflash", "ddtree", 0, temperature)]
        written = [outcome.token_ids for outcome in outcomes]
        report[f"repeated_4_grams T={temperature:g}"] = repeated_share(written)
    report["repeated_4_grams held_out"] = repeated_share([text[: recipe.new_tokens] for text in texts])
    report["goals"] = goals(report["emitted_per_round"], recipe)
    return report


def goals(emitted: dict[str, dict[str, float]], recipe: Recipe) -> dict[str, Any]:
    """The two goals of acceptance, as numbers beside what was reached."""
    tree = emitted[str(Setting("dflash", "ddtree", at_budget(recipe), 0.0))]["mean"]
    chain = emitted[str(Setting("dflash", "chain", recipe.drafter["block_size"] - 1, 0.0))]["mean"]
    ngram = emitted[str(Setting("ngram", "ddtree", at_budget(recipe), 0.0))]["mean"]
    return {
        "node_budget": at_budget(recipe),
        "tree": {"goal": 5.0, "reached": tree},
        "tree_over_chain": {"goal": 1.3, "reached": round(tree / chain, 3)},
        "dflash_over_ngram": {"goal": 1.0, "reached": round(tree / ngram, 3)},
    }


def main() -> None:
    """Evaluate a folder that `python -m kdnb.training` wrote."""
    parser = argparse.ArgumentParser(prog="python -m kdnb.training.evaluate", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recipe", choices=RECIPES, default="tiny")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    path = options.folder / "acceptance.json"  # keeps what PyTorch measured, if it did
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    report |= evaluate(options.folder, RECIPES[options.recipe], options.workers)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

"""Break one thing at a time and show which tests notice.

    python tools/mutate.py            # every mutation, a table, exit 1 if one survives
    python tools/mutate.py stale_mask # only these

Each mutation replaces one piece of source text in a copy of the project and runs a few tests there;
at least one of them must turn red. The source text must occur exactly once, so that a mutation which
no longer applies is an error and not a silent pass.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TRACES = "tests/loop/test_pair_traces.py"
TARGETS = "tests/golden/test_targets.py"


class Mutation(NamedTuple):
    """One fault: in `file`, `old` becomes `new`; `tests` must notice."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LOOP, DFLASH, ROUTER = "kdnb/decoding.py", "kdnb/drafters/dflash.py", "kdnb/reference/router.py"
PLACES, ROPE = "positions=prefix_len + tree.depths,", "kdnb/rope_config.py"
QUANTIZED = "tests/unit/test_checkpoint.py"
MUTATIONS = {
    # the loop
    "causal_mask": Mutation(LOOP, "visible=tree.visible,", "visible=None,", (TRACES,)),
    "position_plus_one": Mutation(LOOP, PLACES, "positions=prefix_len + 1 + tree.depths,", (TRACES,)),
    "index_positions": Mutation(LOOP, PLACES, "positions=None,", (TRACES,)),
    "stale_mask": Mutation(
        LOOP,
        "visible=tree.visible,",
        "visible=next((r.tree.visible for r in self.rounds"
        " if r.tree.num_nodes == tree.num_nodes), tree.visible),",
        (TRACES,),
    ),
    "no_compaction": Mutation(
        "kdnb/cache.py",
        "            self.backend.compact(self._rows, self.prefix_len, kept)",
        "            pass",
        (TRACES,),
    ),
    "features_not_gathered": Mutation(
        LOOP,
        "kept = {name: take(x, acceptance.accepted)",
        "kept = {name: take(x, np.arange(len(acceptance.accepted)))",
        (TRACES,),
    ),
    "overshoot": Mutation(
        LOOP,
        "== self.settings.max_new_tokens",
        "== self.settings.max_new_tokens + 1",
        ("tests/loop/test_loop.py",),
    ),
    # the drafter
    "feature_layer_minus_one": Mutation(
        DFLASH, 'f"layers.{layer}.out" for', 'f"layers.{layer - 1}.out" for', (TRACES,)
    ),
    "feature_order": Mutation(
        DFLASH, "for name in self.tap_names]", "for name in self.tap_names[::-1]]", (TRACES,)
    ),
    "no_hidden_norm": Mutation(
        DFLASH,
        "context = b.rms_norm(context, self._hidden_norm, self.config.rms_norm_eps)",
        "pass",
        (TRACES,),
    ),
    "drafter_position_plus_one": Mutation(
        DFLASH,
        "positions = np.arange(self.context_len, self.context_len + len(block))",
        "positions = 1 + np.arange(self.context_len, self.context_len + len(block))",
        (TRACES,),
    ),
    "no_k_norm": Mutation(
        DFLASH,
        "keys = b.head_norm_rope(b.linear(x, layer.k), layer.k_norm,",
        "keys = b.head_norm_rope(b.linear(x, layer.k), layer.q_norm,",
        (TRACES,),
    ),
    "draft_temperature": Mutation(
        "kdnb/draft.py",
        "ids, log_probs = self._backend.top_k_log_probs(self._logits, k)",
        "ids, log_probs = self._backend.top_k_log_probs(self._logits / 2, k)",
        (TRACES,),
    ),
    # files
    "nibble_order": Mutation(
        "kdnb/checkpoint/quantized.py",
        "np.right_shift(pairs, 4, out=values[:, :, 1]",
        "values[:, :, 1] = values[:, :, 0]; np.right_shift(pairs, 4, out=values[:, :, 0]",
        (QUANTIZED,),
    ),
    "offset_7": Mutation("kdnb/checkpoint/quantized.py", "values -= 8", "values -= 7", (QUANTIZED,)),
    "fp8_divided": Mutation("kdnb/checkpoint/quantized.py", "] *= scales[", "] /= scales[", (QUANTIZED,)),
    # the forward
    "no_mscale_squared": Mutation(
        "kdnb/config.py", " * self.rope.softmax_mscale**2", "", ("tests/unit/test_config.py", TARGETS)
    ),
    "beta_defaults": Mutation(
        ROPE,
        'beta_fast=read.number("beta_fast", None, above=0) or 32.0',
        "beta_fast=32.0",
        ("tests/unit/test_config.py",),
    ),
    "lora_norm_eps": Mutation(
        "kdnb/config.py",
        'read.number("lora_norm_eps", LORA_NORM_EPS, above=0)',
        'read.number("rms_norm_eps")',
        ("tests/unit/test_config.py",),
    ),
    "rope_halves": Mutation(
        "kdnb/reference/rope.py",
        "return _rotate(x[..., 0::2], x[..., 1::2], rows)",
        "return rotate_half(x, rows)",
        (TARGETS,),
    ),
    "bias_in_the_weights": Mutation(
        ROUTER, "topk_weight = scores[", "topk_weight = choice[", ("tests/kernel/test_router.py",)
    ),
    "group_maximum": Mutation(
        ROUTER, "[:, :, -2:].sum(axis=2)", "[:, :, -1]", ("tests/kernel/test_router.py",)
    ),
    "group_mask_zero": Mutation(
        ROUTER, "outside = -np.inf", "outside = 0.0", ("tests/kernel/test_router.py",)
    ),
    "no_shared_expert": Mutation(
        "kdnb/model.py", 'y = b.add(y, watch(name + "shared_experts.out", shared))', "pass", (TARGETS,)
    ),
    "tie_to_the_higher_id": Mutation(
        "kdnb/reference/top_k.py",
        "level = np.flatnonzero(values == bar)[: k - len(above)]",
        "level = np.flatnonzero(values == bar)[::-1][: k - len(above)]",
        ("tests/kernel/test_top_k.py",),
    ),
}


def run(name: str, mutation: Mutation) -> tuple[bool, str, float]:
    """Apply one mutation to a copy and run its tests: (noticed, first failing test, seconds)."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "kdnb-mutated"
        for part in ("kdnb", "tests", "notebooks", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, copy / part, ignore=ignore)
            else:
                copy.mkdir(exist_ok=True)
                shutil.copy(source, copy / part)
        path = copy / mutation.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise SystemExit(
                f"{name}: {mutation.old!r} occurs {text.count(mutation.old)} times in "
                f"{mutation.file}, expected once; bring tools/mutate.py up to date."
            )
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *mutation.tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name}: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
    first = failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else ""
    return done.returncode == 1, first, time.perf_counter() - began


def main(names: list[str]) -> int:
    """Run the named mutations, or all; return the number that no test noticed."""
    survivors = 0
    for name in names or MUTATIONS:
        noticed, first, seconds = run(name, MUTATIONS[name])
        survivors += not noticed
        print(f"{'red ' if noticed else 'GREEN'} {name:28s} {seconds:5.1f} s  {first}", flush=True)
    print(f"{survivors} of {len(names or MUTATIONS)} mutations survived")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Everything that only a GPU can show: `python -m kdnb.gpu_check --json tests/data/gpu_report.json`."""

import argparse
import gc
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kdnb.backends.cuda_device import CudaDevice
from kdnb.backends.device import DeviceArray
from kdnb.backends.kernel_backend import KernelBackend
from kdnb.backends.numpy_backend import NumpyBackend
from kdnb.drafters import load_drafter
from kdnb.gpu_bench import machine
from kdnb.kernels.source import sources_digest
from kdnb.loop import generate, rounds
from kdnb.model import load_target
from kdnb.run import Run
from kdnb.testing import CheckFailed, check_backend
from kdnb.testing.ops import check_ops
from kdnb.tree import DraftTree

PROMPTS = ("def read(self):\n", "import os\n\n\nclass ", "    return [x for x in ")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
BF16_TOLERANCE = 2.0**-6  # of a layer's result, relative to its root mean square: some ten roundings of 2**-9
SOAK_ROUNDS = 2000
BUDGETS = (*range(1, 17), 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256)
TIE = 1e-4  # of scores, sums of up to seven log-probs that differ by rounding


def main() -> int:
    """Run the checks, print a line each, write the report; status 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m kdnb.gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the report goes")
    parser.add_argument("--goldens", type=Path, default=Path("tests/data/targets"), help="targets to compare")
    parser.add_argument("--ops-only", nargs="*", help="only the small checks of these ops (all: none named)")
    parser.add_argument(
        "--sanitize", action="store_true", help="also run the op checks under compute-sanitizer"
    )
    parser.add_argument("--only", nargs="*", help="only the checks whose name contains one of these")
    options = parser.parse_args()
    device = CudaDevice()
    if options.ops_only is not None:
        for dtype in ("float32", "bfloat16"):
            print(check_ops(KernelBackend(device, dtype), only=options.ops_only or None))  # noqa: T201
        return 0
    report: dict[str, Any] = {"sources": sources_digest(), "machine": machine(device), "checks": {}}
    failed = False
    for name, check in _checks(device, options.goldens, options.sanitize).items():
        if options.only and not any(part in name for part in options.only):
            continue
        began = time.perf_counter()
        try:
            result = check()
        except Exception as error:  # the next checks may still tell something
            result, failed = f"FAILED: {type(error).__name__}: {error}", True
        seconds = round(time.perf_counter() - began, 2)
        report["checks"][name] = {"result": result, "seconds": seconds}
        print(f"{name}: {result} [{seconds} s]", flush=True)  # noqa: T201 - a program's output
        gc.collect()
    if options.json:
        if options.json.is_file():  # a report of the same sources is continued
            before = json.loads(options.json.read_text())
            if before["sources"] == report["sources"]:
                report["checks"] = before["checks"] | report["checks"]
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def _checks(device: CudaDevice, goldens: Path, sanitize: bool) -> dict[str, Callable[[], Any]]:
    exact = KernelBackend(device)
    checks: dict[str, Callable[[], Any]] = {
        "ops, float32": lambda: check_ops(exact, wide=True),
        "ops, bfloat16": lambda: check_ops(KernelBackend(device, "bfloat16"), wide=True),
        "backend": lambda: check_backend(exact),
        "golden targets, float32": lambda: _targets(exact, goldens),
        "bfloat16, layer by layer": lambda: _layers(device, goldens),
        "golden pair, every round": lambda: _pair(device),
        "draft trees equal plain decoding": lambda: _lossless(device),
        "offsets beyond 2**31": lambda: _wide_offsets(device),
        f"{SOAK_ROUNDS} rounds": lambda: _soak(device),
    }
    if sanitize:
        checks |= {f"compute-sanitizer {tool}": partial(_sanitizer, tool) for tool in SANITIZERS}
    return checks


def _targets(backend: KernelBackend, goldens: Path) -> dict[str, float]:
    """Largest difference of logits from numpy, which the goldens judge, with the same greedy tokens."""
    worst = {}
    for folder in sorted(path for path in goldens.iterdir() if path.is_dir()):
        ours, theirs = load_target(folder), load_target(folder, backend=backend)
        ids = list(range(5, 29))
        want, got = ours.logits(ids), theirs.logits(ids)
        difference = float(np.abs(want - got).max())
        scale = max(1.0, float(np.sqrt(np.mean(want**2))))
        texts = [generate(t, ids, max_new_tokens=16, stop_ids=()).token_ids.tolist() for t in (ours, theirs)]
        if difference > 1e-4 * scale or texts[0] != texts[1]:
            raise CheckFailed(f"{folder.name}: logits differ by {difference:g}, tokens {texts}")
        worst[folder.name] = difference
    return worst


def _layers(device: CudaDevice, goldens: Path) -> dict[str, float]:
    """Each layer's worst error in bfloat16, on the very inputs that it had, relative to its result's rms."""
    worst = {}
    for folder in sorted(path for path in goldens.iterdir() if path.is_dir()):
        theirs = load_target(folder, backend=KernelBackend(device, "bfloat16"))
        ids = np.arange(5, 29)
        result = theirs.forward(ids, theirs.new_cache(), taps=theirs.tap_names)
        referee = load_target(folder, backend=_Rounded())

        def edit(name: str, _: Any, taps: dict[str, Any] = result.taps) -> Any:
            """A layer's input and its choice of experts are the device's."""
            whole_layer = name == "embed.out" or (name.endswith(".out") and name.count(".") == 2)
            return taps[name] if whole_layer or "router.topk" in name else None

        want = referee.forward(ids, referee.new_cache(), taps=referee.tap_names, edit=edit)
        errors = []
        for name, value in want.taps.items():
            if name.endswith(("attn.out", "mlp.out", "attn.residual")):
                rms = float(np.sqrt(np.mean(value**2)))
                errors.append(float(np.abs(result.taps[name] - value).max()) / rms)
        worst[folder.name] = round(max(errors), 5)
        if max(errors) > BF16_TOLERANCE * 4:  # the largest of thousands of errors, against their rms
            raise CheckFailed(f"{folder.name}: a layer is off by {max(errors):g} of its rms")
    return worst


class _Rounded(NumpyBackend):
    """The float64 referee with weights rounded as the device holds them."""

    def __init__(self) -> None:
        super().__init__("float64")
        store = self._store
        read = store.get

        def rounded(stored: Any) -> Any:
            values = read(stored)
            if len(stored.shape) == 2 and stored.kind != "int4":
                values = values.astype(ml_dtypes.bfloat16).astype(np.float64)
            return values

        store.get = rounded  # type: ignore[method-assign]


def _pair(device: CudaDevice) -> str:
    """Tokens, trees and accepted paths of every round as numpy's; one graph, and round by round."""
    ours, theirs = load_target("golden"), load_target("golden", backend=KernelBackend(device))
    our_drafter, their_drafter = load_drafter("golden", ours), load_drafter("golden", theirs)
    count = 0
    for prompt in PROMPTS:
        kinds: list[dict[str, Any]] = [{"node_budget": n} for n in (0, 1, 8, 16, 64, 256, 1024)]
        kinds += [{"node_budget": 7, "policy": "chain"}]
        kinds += [{"node_budget": 32, "temperature": 0.8, "seed": 7}]
        for choices in kinds:
            every: dict[str, Any] = {"max_new_tokens": 64, "stop_ids": (), **choices}
            want = generate(ours, prompt, our_drafter, **every)
            got = generate(theirs, prompt, their_drafter, **every)
            stepped = list(rounds(theirs, prompt, their_drafter, **every))
            _same(want, got, f"{prompt!r} {choices}")
            if [s.accepted.tolist() for s in stepped] != [s.accepted.tolist() for s in got.rounds]:
                raise CheckFailed(f"{prompt!r} {choices}: round by round differs from one graph")
            count += len(got.rounds)
    return f"{count} rounds equal"


def _same(want: Run, got: Run, place: str) -> None:
    if want.token_ids.tolist() != got.token_ids.tolist() or len(want.rounds) != len(got.rounds):
        raise CheckFailed(f"{place}: tokens differ: {want.token_ids.tolist()} {got.token_ids.tolist()}")
    for index, (a, b) in enumerate(zip(want.rounds, got.rounds, strict=True)):
        for name in ("token_ids", "parents", "ranks", "depths"):
            ours, theirs = getattr(a.tree, name), getattr(b.tree, name)
            if ours.shape != theirs.shape:
                raise CheckFailed(f"{place}: round {index}: {name} have shapes {ours.shape}, {theirs.shape}")
            # nodes whose scores differ by rounding alone may change places
            wrong = ours != theirs
            if wrong.any() and not _only_ties(a.tree, b.tree):
                raise CheckFailed(f"{place}: round {index}: {name} differ at {np.flatnonzero(wrong)}")
        same = a.tree.token_ids[a.accepted].tolist() == b.tree.token_ids[b.accepted].tolist()
        same &= a.bonus_id == b.bonus_id
        if not same or a.emitted.tolist() != b.emitted.tolist() or a.prefix_len != b.prefix_len:
            raise CheckFailed(f"{place}: round {index}: accepted {a.accepted} and {b.accepted}")


def _only_ties(ours: DraftTree, theirs: DraftTree) -> bool:
    """Whether two trees differ only in nodes whose scores agree but for rounding."""
    if ours.scores is None or theirs.scores is None:
        return False
    score_of = [
        {tuple(tree.token_ids[tree.path(node)].tolist()): float(score) for node, score in enumerate(scores)}
        for tree, scores in ((ours, ours.scores), (theirs, theirs.scores))
    ]
    last = float(ours.scores.min())  # what only one tree took was the other's first to leave out
    for mine, other in (score_of, score_of[::-1]):
        if any(abs(score - other.get(path, last)) > TIE for path, score in mine.items()):
            return False
    return bool(np.abs(ours.scores - theirs.scores).max() <= TIE)


def _lossless(device: CudaDevice) -> str:
    """The text of plain decoding at every budget: with a library's products, and bit for bit without."""
    least = np.inf
    for dtype, deterministic in (("float32", False), ("float32", True), ("bfloat16", True)):
        target = load_target("golden", backend=KernelBackend(device, dtype, deterministic))
        drafter = load_drafter("golden", target)
        plain = generate(target, PROMPTS[0], max_new_tokens=96, stop_ids=())
        for budget in BUDGETS:
            run = generate(target, PROMPTS[0], drafter, max_new_tokens=96, node_budget=budget, stop_ids=())
            if run.token_ids.tolist() != plain.token_ids.tolist():
                raise CheckFailed(f"{dtype}, deterministic={deterministic}, budget {budget}: another text")
            least = min(least, run.summary()["min_gap"])
    return f"{len(BUDGETS)} budgets up to 256, float32 and bfloat16; smallest gap {least:.3g}"


def _wide_offsets(device: CudaDevice) -> str:
    """Attention over a cache of more than 2**31 values: 4 million rows, equal every 1,024."""
    backend = KernelBackend(device, "bfloat16")
    rng = np.random.default_rng(0)
    period, width, lora, copies = 1024, 576, 512, 4096
    rows = rng.standard_normal((period, width)).astype(ml_dtypes.bfloat16)
    prefix_len = period * copies - 1024
    cache = backend.empty((1, period * copies, width))
    device.write(cache.view((period, width)), rows)
    done = period
    while done < period * copies:
        part = DeviceArray((done, width), cache.dtype, cache.memory)
        device.copy(cache.view((done, width), done * width), part)
        done *= 2
    query = (rng.standard_normal((1, 8, width)) / 24).astype(np.float32)
    context = backend.verify_attention(backend.upload(query), cache, 0, prefix_len, None, 1.0, lora)
    got = backend.download(context)[0]
    keys = rows.astype(np.float64)
    # one row more than whole periods: the query's own, the first of the next
    scores = query[0].astype(ml_dtypes.bfloat16).astype(np.float64) @ keys.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    counts = np.full(period, float(prefix_len // period))
    counts[0] += 1
    weights *= counts
    want = weights @ keys[:, :lora] / weights.sum(axis=1, keepdims=True)
    error = float(np.abs(got - want).max())
    if not error < 2e-3:
        raise CheckFailed(f"attention over {prefix_len:,} rows is off by {error:g}")
    return f"{period * copies * width:,} values, error {error:.2g}"


def _soak(device: CudaDevice) -> str:
    """Rounds until SOAK_ROUNDS; device memory must not grow once everything has run twice."""
    target = load_target("golden", backend=KernelBackend(device))
    drafter = load_drafter("golden", target)
    held: list[int] = []
    count = 0
    while count < SOAK_ROUNDS:
        for choices in ({"node_budget": 16}, {"node_budget": 64, "temperature": 1.0}):
            run = generate(target, PROMPTS[0], drafter, max_new_tokens=300, stop_ids=(), **choices)
            count += len(run.rounds)
        gc.collect()
        device.pool.trim()
        held.append(device.pool.held_bytes + 0)
    if max(held[2:]) > held[1]:
        raise CheckFailed(f"device memory grew: {held}")
    return f"{count} rounds, {held[-1]:,} bytes held after each, as after the second"


def _sanitizer(tool: str) -> str:
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [
        path,
        "--tool",
        tool,
        "--error-exitcode",
        "3",
        sys.executable,
        "-m",
        "kdnb.gpu_check",
        "--ops-only",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
    if done.returncode or not summary:
        told = [line for line in done.stdout.splitlines() if "Host Frame" not in line]
        raise CheckFailed("\n".join(told[:40]))
    return summary[-1].strip("= ")


if __name__ == "__main__":
    sys.exit(main())

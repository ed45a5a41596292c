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


MUTATIONS = {
    "causal_mask": Mutation("kdnb/loop.py", "visible=tree.visible,", "visible=None,", (TRACES,)),
    "position_plus_one": Mutation(
        "kdnb/loop.py",
        "positions=prefix_len + tree.depths,",
        "positions=prefix_len + 1 + tree.depths,",
        (TRACES,),
    ),
    "index_positions": Mutation(
        "kdnb/loop.py", "positions=prefix_len + tree.depths,", "positions=None,", (TRACES,)
    ),
    "stale_mask": Mutation(
        "kdnb/loop.py",
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
    "feature_layer_minus_one": Mutation(
        "kdnb/drafters/dflash.py", "FEATURE_LAYER", "FEATURE_LAYER - 1", (TRACES,)
    ),
    "features_not_gathered": Mutation(
        "kdnb/loop.py",
        "kept = {name: take(x, acceptance.accepted)",
        "kept = {name: take(x, np.arange(len(acceptance.accepted)))",
        (TRACES,),
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

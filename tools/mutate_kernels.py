"""Change one operator in every kernel and show that its check on the emulated backend turns red.

    python tools/mutate_kernels.py [NAME ...]

Nothing falls back to numpy: what a kernel computes is what is judged. Without a change all is green.
"""

import sys
import time
from dataclasses import dataclass

from kdnb.backends.emulated_device import EmulatedDevice
from kdnb.backends.kernel_backend import KernelBackend
from kdnb.drafters import load_drafter
from kdnb.errors import KdnbError
from kdnb.kernels.source import CUDA_SRC
from kdnb.loop import generate
from kdnb.model import load_target
from kdnb.testing import CheckFailed
from kdnb.testing.ops import check_ops

PROMPT = "def read(self):\n"


@dataclass(frozen=True)
class Mutation:
    """One edit of a kernel and the ops that must notice it; no op: the loop must."""

    kernel: str
    old: str
    new: str
    ops: tuple[str, ...] = ()


MUTATIONS = (
    Mutation("append_latent", "KV_LORA_RANK + eps", "KV_LORA_RANK - eps", ("append_latent",)),
    Mutation(
        "append_latent", "(int64_t(*prefix_len) + row)", "(int64_t(*prefix_len) - row)", ("append_latent",)
    ),
    Mutation(
        "cache_compact",
        "int64_t(kept_rows[j]) * width",
        "int64_t(kept_rows[j] - 1) * width",
        ("cache_compact",),
    ),
    Mutation("decode_round", "state[PREFIX_LEN] + i;", "state[PREFIX_LEN] - i;"),
    Mutation("decode_round", "state[PREFIX_LEN] += kept;", "state[PREFIX_LEN] += kept - 1;"),
    Mutation("decode_round", "count == max_new_tokens", "count > max_new_tokens"),
    Mutation("draft_attention", "q[d] * to_float(k[d])", "q[d] + to_float(k[d])", ("draft_attention",)),
    Mutation("draft_attention", "head / (HEADS / KV_HEADS)", "head % KV_HEADS", ("draft_attention",)),
    Mutation(
        "embed",
        "int64_t(token_ids[blockIdx.x]) * hidden",
        "int64_t(token_ids[blockIdx.x] ^ 1) * hidden",
        ("rows",),
    ),
    Mutation("experts", "to_float(scales[int64_t(out)", "2.0f * to_float(scales[int64_t(out)", ("experts",)),
    Mutation("experts", "nibble & 15u) - 8", "nibble & 15u) - 7", ("experts",)),
    Mutation("experts", "sum.high * topk_weight", "sum.high + topk_weight", ("experts",)),
    Mutation(
        "experts", "for (int k = 0; k < top_k; k++) sum", "for (int k = 1; k < top_k; k++) sum", ("experts",)
    ),
    Mutation("head_norm_rope", "first * c - second * s", "first * c + second * s", ("head_norm_rope",)),
    Mutation("linear", "sum.low + offset", "sum.low - offset", ("linear",)),
    Mutation("mla_query", "nope[group * 4 + r][k] * v", "nope[group * 4 + r][k] + v", ("mla",)),
    Mutation(
        "mla_value",
        "* (NOPE_DIM + V_HEAD_DIM) + NOPE_DIM)",
        "* (NOPE_DIM + V_HEAD_DIM) - NOPE_DIM)",
        ("mla",),
    ),
    Mutation("rms_norm", "row[i] * scale * weight[i]", "row[i] / scale * weight[i]", ("norms",)),
    Mutation("rms_norm", "to_float(x[i]) + to_float(y[i])", "to_float(x[i]) - to_float(y[i])", ("rows",)),
    Mutation("rope", "sinf(angle) * scaling", "sinf(angle) / scaling", ("rope",)),
    Mutation("router", "values[j] == mine && j < i", "values[j] == mine && j > i", ("router",)),
    Mutation(
        "router",
        "NOAUX_TC && GROUP_SIZE > 1 ? best + second",
        "NOAUX_TC && GROUP_SIZE > 1 ? best - second",
        ("router",),
    ),
    Mutation("router", "chosen[k] / (sum + 1e-20f)", "chosen[k] * (sum + 1e-20f)", ("router",)),
    Mutation(
        "rows", "int64_t(indices[blockIdx.x]) * size", "int64_t(indices[blockIdx.x] / 2) * size", ("rows",)
    ),
    Mutation("sample_token", "+ depths[blockIdx.x] + 1", "+ depths[blockIdx.x] + 2", ("sample",)),
    Mutation("sample_token", "/ double(temperature)", "* double(temperature)", ("sample",)),
    Mutation("swiglu", "(1.0f + expf(-g))", "(1.0f - expf(-g))", ("mlp",)),
    Mutation("top_k", "chosen[j] > chosen[i]", "chosen[j] >= chosen[i]", ("top_k",)),
    Mutation("top_k", "if (i != id_of(best)) second", "if (i == id_of(best)) second", ("argmax",)),
    Mutation("tree_accept", "== next_ids[parents[node]]", "!= next_ids[parents[node]]", ("tree_accept",)),
    Mutation(
        "tree_build",
        "sa != sb ? sa > sb : tuple_before(level_a",
        "sa != sb ? sa < sb : tuple_before(level_a",
        ("tree_build",),
    ),
    Mutation("tree_build", "before = rank_a < rank_b", "before = rank_a > rank_b", ("tree_build",)),
    Mutation("tree_build", "theirs == score && other != j", "theirs == score && other > j", ("tree_build",)),
    Mutation(
        "verify_attention",
        "visible ? num_visible(seen, num_words) : row + 1",
        "visible ? num_visible(seen, num_words) : row",
        ("verify_attention",),
    ),
    Mutation("verify_attention", "sum *= smaller;", "sum += smaller;", ("verify_attention",)),
    Mutation(
        "verify_attention",
        "* expf(of_splits[2 * s] - top);\n        store",
        "* expf(of_splits[2 * s] + top);\n        store",
        ("verify_attention",),
    ),
)


def main() -> int:
    """Run the control, then every mutation; status 1 if the control is red or a mutation is not seen."""
    chosen = [m for m in MUTATIONS if not sys.argv[1:] or m.kernel in sys.argv[1:]]
    missing = {path.stem for path in CUDA_SRC.glob("*.cu")} - {m.kernel for m in MUTATIONS}
    if missing:
        print(f"no mutation of {sorted(missing)}")
        return 1
    for ops in dict.fromkeys(m.ops for m in chosen):
        problem = judge({}, ops)
        if problem:
            print(f"without a change {ops or 'the loop'} is red: {problem}")
            return 1
    unseen = 0
    for mutation in chosen:
        began = time.perf_counter()
        problem = judge({mutation.kernel: mutated(mutation)}, mutation.ops)
        unseen += problem is None
        place = problem.splitlines()[0][:90] if problem else "NOT SEEN"
        seconds = time.perf_counter() - began
        print(f"{mutation.kernel}: {mutation.new.splitlines()[0]}: {place} [{seconds:.1f} s]", flush=True)
    print(f"{len(chosen) - unseen} of {len(chosen)} mutations seen")
    return int(unseen > 0)


def mutated(mutation: Mutation) -> str:
    """The kernel's source with the edit."""
    text = (CUDA_SRC / f"{mutation.kernel}.cu").read_text()
    if text.count(mutation.old) < 1:
        raise SystemExit(f"{mutation.kernel}.cu no longer has {mutation.old!r}")
    return text.replace(mutation.old, mutation.new, 1)


def judge(bodies: dict[str, str], ops: tuple[str, ...]) -> str | None:
    """What is wrong with these sources, or None."""
    backend = KernelBackend(EmulatedDevice(bodies=bodies))
    try:
        if ops:
            check_ops(backend, only=ops)
        else:
            check_loop(backend)
    except (KdnbError, CheckFailed) as problem:
        return str(problem)
    return None


def check_loop(backend: KernelBackend) -> None:
    """The golden pair's run equals numpy's."""
    runs = []
    for target in (load_target("golden"), load_target("golden", backend=backend)):
        drafter = load_drafter("golden", target)
        runs.append(generate(target, PROMPT, drafter, max_new_tokens=12, node_budget=4, stop_ids=()))
    want, got = runs
    paths = [[step.accepted.tolist() for step in run.rounds] for run in runs]
    if want.token_ids.tolist() != got.token_ids.tolist() or paths[0] != paths[1]:
        raise CheckFailed(f"the run is {got.token_ids.tolist()}, expected {want.token_ids.tolist()}")


if __name__ == "__main__":
    sys.exit(main())

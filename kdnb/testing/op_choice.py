"""Choosing tokens on a kernel backend: top-k, argmax, sampling."""

import numpy as np

from kdnb.arrays import Float32
from kdnb.backends.kernel_backend import FLOAT32, INT32
from kdnb.noise import Noise
from kdnb.reference.top_k import top_k, top_k_log_probs
from kdnb.testing.judge import Judge
from kdnb.tree import DraftTree
from kdnb.verify_rules.sample_and_walk import SampleAndWalk

INFINITY = np.float32(np.inf)
# vocab_size and how many are asked for
SIZES = [(1, (1,)), (3, (1, 3)), (40, (1, 7, 40)), (1500, (1, 33, 1024))]
WIDE_SIZES = [(2053, (1, 64, 1024)), (163_840, (1, 70, 512, 1024))]


def _rows(judge: Judge, vocab_size: int) -> list[tuple[str, Float32]]:
    """Kinds of logits, each [rows, vocab_size]."""
    rng = judge.rng
    plain = rng.standard_normal((3, vocab_size)).astype(np.float32) * 4
    ties = rng.integers(-1, 2, (3, vocab_size)).astype(np.float32)
    hidden = plain.copy()
    hidden[rng.random(hidden.shape) < 0.7] = -INFINITY
    hidden[:, vocab_size // 2] = 1.0
    zeros = np.where(rng.random((3, vocab_size)) < 0.5, np.float32(-0.0), np.float32(0.0))
    close = np.float32(1.0) + rng.integers(0, 40, (3, vocab_size)).astype(np.float32) * np.float32(2.0**-23)
    equal = np.full((1, vocab_size), -7.5, dtype=np.float32)
    kinds = {"plain": plain, "ties": ties, "minus infinity": hidden, "minus zero": zeros}
    return list({**kinds, "neighbouring floats": close, "equal": equal}.items())


def check_top_k(judge: Judge) -> None:
    """Ids are exact, ties included, also across the cut."""
    for vocab_size, counts in SIZES + (WIDE_SIZES if judge.wide else []):
        for kind, logits in _rows(judge, vocab_size):
            for k in counts:
                case = f"top_k of {kind} [{len(logits)}, {vocab_size}], k {k}"
                ids, log_probs, tops = judge.backend.top_k(judge.backend.put(logits, FLOAT32), k)
                _, want = top_k_log_probs(logits.astype(np.float64), k)
                judge.exact(f"{case}: ids", ids, top_k(logits, k))
                judge.close(f"{case}: log-probs", log_probs, want.astype(np.float64))
                judge.exact(f"{case}: largest", tops, logits.max(axis=1))
    broken = np.ones((3, 50), dtype=np.float32)
    broken[1, 49], broken[2] = np.nan, -INFINITY
    _, _, tops = judge.backend.top_k(judge.backend.put(broken, FLOAT32), 5)
    judge.exact("top_k of NaN: largest", tops, np.array([1, np.nan, -INFINITY]))


def check_argmax(judge: Judge) -> None:
    """The first of the largest, and by how much it won."""
    for vocab_size, _ in SIZES + (WIDE_SIZES if judge.wide else []):
        for kind, logits in _rows(judge, vocab_size):
            case = f"argmax of {kind} [{len(logits)}, {vocab_size}]"
            ids, gaps, tops = judge.backend.argmax(judge.backend.put(logits, FLOAT32))
            judge.exact(f"{case}: ids", ids, logits.argmax(axis=1).astype(np.int32))
            second = np.partition(logits, -2, axis=1)[:, -2] if vocab_size > 1 else -INFINITY
            judge.exact(f"{case}: gaps", gaps, logits.max(axis=1) - second)
            judge.exact(f"{case}: largest", tops, logits.max(axis=1))
    broken = np.ones((2, 50), dtype=np.float32)
    broken[1, 3] = np.nan
    _, _, tops = judge.backend.argmax(judge.backend.put(broken, FLOAT32))
    judge.exact("argmax of NaN: largest", tops, np.array([1, np.nan]))


def check_sample(judge: Judge) -> None:
    """The tokens that SampleAndWalk draws on the host, at the same places."""
    b = judge.backend
    cases = [(1, 0, 0, 1.0), (40, 7, 3, 0.7), (1501, 2**64 - 1, 131_072, 1.3), (4, 2**63, 5, 0.01)]
    if judge.wide:
        cases.append((163_840, 11, 9000, 0.6))
    for vocab_size, seed, prefix_len, temperature in cases:
        num_nodes = 9
        parents = np.array([-1, *(int(judge.rng.integers(0, node)) for node in range(1, num_nodes))])
        tree = DraftTree.from_parents(np.arange(num_nodes), parents)
        for kind, logits in _rows(judge, vocab_size):
            logits = np.resize(logits, (num_nodes, vocab_size))
            rule = SampleAndWalk(float(np.float32(temperature)))  # as the kernel's argument holds it
            want = rule(tree, logits, Noise(seed, prefix_len)).next_ids
            depths, length = b.put(tree.depths, INT32), b.put(np.array([prefix_len], dtype=np.int32))
            ids, gaps, tops = b.sample(b.put(logits, FLOAT32), depths, length, seed, temperature)
            case = f"sample of {kind} [{num_nodes}, {vocab_size}], seed {seed}, temperature {temperature:g}"
            assert want is not None
            judge.exact(f"{case}: ids", ids, want)
            judge.exact(f"{case}: largest", tops, logits.max(axis=1))
            keys = np.stack(
                [
                    row.astype(np.float64) / float(np.float32(temperature))
                    + Noise(seed, prefix_len).gumbel(depth, vocab_size)
                    for row, depth in zip(logits, tree.depths.tolist(), strict=True)
                ]
            )
            best_two = np.sort(keys, axis=1)[:, -2:]
            margin = best_two[:, 1] - best_two[:, 0] if vocab_size > 1 else np.full(num_nodes, np.inf)
            judge.close(f"{case}: gaps", gaps, margin)

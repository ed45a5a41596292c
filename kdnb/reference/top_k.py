"""The best tokens of a distribution and their log-probs."""

import numpy as np

from kdnb.arrays import Float32, Float64, Floats, Int32
from kdnb.errors import ShapeError

SORT_AT_MOST = 512  # vocabulary up to which one sort of all rows beats a partition of each


def top_k(logits: Floats, k: int) -> Int32:
    """Indices of the k largest values of each row, descending, equal values to the lower index.

    Args:
        logits: [rows, vocab_size], without NaN; -inf is a token that cannot come.
        k: How many, 0 or more; capped at vocab_size.

    Returns:
        int32 [rows, min(k, vocab_size)].

    Raises:
        ShapeError: if a value is NaN, or k is negative.
    Exact: integer op; ties included, also at the cut.
    Cost: a partition per row, not a sort of the vocabulary, except a small one.
    """
    rows, vocab_size = logits.shape
    if k < 0:
        raise ShapeError(f"k is {k}; ask for 0 tokens or more.")
    k = min(k, vocab_size)
    ids = np.empty((rows, k), dtype=np.int32)
    if k == 0 or rows == 0:
        return ids
    broken = np.flatnonzero(np.isnan(logits.max(axis=1)))  # max hands a NaN on
    if broken.size:
        raise ShapeError(f"logits row {int(broken[0])} holds NaN; the model or drafter is broken.")
    if vocab_size <= SORT_AT_MOST:
        order: Int32 = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
        return order
    for row in range(rows):
        ids[row] = _top_k_of_row(logits[row], k)
    return ids


def _top_k_of_row(values: Floats, k: int) -> Int32:
    bar = values.min()  # often shared by most of a vocabulary (-inf), which a partition is slow at
    above = np.flatnonzero(values > bar)
    if len(above) > k:
        candidates = values[above] if 2 * len(above) < len(values) else values
        bar = np.partition(candidates, len(candidates) - k)[len(candidates) - k]  # the k-th largest
        above = np.flatnonzero(values > bar)
    level = np.flatnonzero(values == bar)[: k - len(above)]
    above = above[np.argsort(-values[above], kind="stable")]
    return np.concatenate([above, level]).astype(np.int32)


def log_sum_exp(logits: Floats) -> Float64:
    """log(sum(exp(row))) of each row: float64 [rows, 1]; -inf entries do not count.

    Exponentials in the logits' own dtype, their sum in float64.

    Raises:
        ShapeError: if a row holds NaN or +inf, or nothing but -inf.
    """
    top = logits.max(axis=1, keepdims=True)
    broken = ~np.isfinite(top[:, 0])
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        what = {np.inf: "plus infinity", -np.inf: "minus infinity only"}.get(float(top[row, 0]), "NaN")
        raise ShapeError(f"logits row {row} holds {what}; the model or drafter is broken.")
    total = np.exp(logits - top).sum(axis=1, keepdims=True, dtype=np.float64)
    sums: Float64 = top.astype(np.float64) + np.log(total)
    return sums


def top_k_log_probs(logits: Floats, k: int) -> tuple[Int32, Float32]:
    """The k best tokens of each row and their log-probs over the full vocabulary.

    Args:
        logits: [rows, vocab_size].
        k: How many; capped at vocab_size.

    Returns:
        ids int32 and log-probs float32, each [rows, k]; ranked by logit, ties to the lower id.

    Raises:
        ShapeError: if a row holds NaN or +inf, or nothing but -inf.
    Error: ids exact; log-probs to a few float32 roundings (5e-7 of their size).
    """
    ids = top_k(logits, k)
    chosen = np.take_along_axis(logits, ids, axis=1)
    return ids, (chosen - log_sum_exp(logits)).astype(np.float32)

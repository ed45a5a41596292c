"""The best tokens of a distribution and their log-probs."""

import numpy as np

from kdnb.arrays import Float32, Floats, Int32
from kdnb.errors import ShapeError


def top_k(logits: Floats, k: int) -> Int32:
    """Indices of the k largest values of each row, descending, equal values to the lower index.

    Args:
        logits: [rows, vocab_size], without NaN.
        k: How many; capped at vocab_size.

    Returns:
        int32 [rows, min(k, vocab_size)].

    Raises:
        ShapeError: if a value is NaN.
    Cost: a partition per row, not a sort of the vocabulary.
    """
    rows, vocab_size = logits.shape
    k = min(k, vocab_size)
    ids = np.empty((rows, k), dtype=np.int32)
    if k == 0:
        return ids
    for row in range(rows):
        values = logits[row]
        bar = np.partition(values, vocab_size - k)[vocab_size - k]  # the k-th largest
        if np.isnan(bar) or np.isnan(values.max()):
            raise ShapeError(f"logits row {row} holds NaN; the model or drafter is broken.")
        above = np.flatnonzero(values > bar)
        level = np.flatnonzero(values == bar)[: k - len(above)]
        above = above[np.argsort(-values[above], kind="stable")]
        ids[row] = np.concatenate([above, level])
    return ids


def log_sum_exp(logits: Floats) -> Floats:
    """log(sum(exp(row))) of each row: [rows, 1]; -inf entries do not count."""
    top = logits.max(axis=1, keepdims=True)
    total: Floats = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return total


def top_k_log_probs(logits: Floats, k: int) -> tuple[Int32, Float32]:
    """The k best tokens of each row and their log-probs over the full vocabulary.

    Args:
        logits: [rows, vocab_size].
        k: How many; capped at vocab_size.

    Returns:
        ids int32 and log-probs float32, each [rows, k]; ranked by logit, ties to the lower id.

    Raises:
        ShapeError: if a logit is NaN.
    """
    ids = top_k(logits, k)
    chosen = np.take_along_axis(logits, ids, axis=1)
    return ids, (chosen - log_sum_exp(logits)).astype(np.float32)

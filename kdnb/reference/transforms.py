"""From logits to the distribution that is sampled: temperature, top-k, top-p."""

import numpy as np

from kdnb.arrays import Floats, Int32
from kdnb.reference.top_k import log_sum_exp, top_k


def transform_logits(logits: Floats, temperature: float, keep: int, top_p: float) -> Floats:
    """Divide by the temperature, then hide tokens outside top-k, then outside top-p.

    Args:
        logits: [rows, vocab_size].
        temperature: Greater than 0.
        keep: Tokens kept by top-k; 0 keeps all.
        top_p: Keep the fewest best tokens whose probabilities (after top-k) reach this sum.

    Returns:
        float64 [rows, vocab_size]; hidden tokens are -inf. Ties at a border go to the lower id.
    Source: the order of transformers' logits warpers.
    """
    scaled: Floats = logits.astype(np.float64) / temperature
    vocab_size = scaled.shape[1]
    if 0 < keep < vocab_size:
        scaled = _keep_only(scaled, top_k(scaled, keep))
    if top_p < 1.0:
        order = top_k(scaled, vocab_size)
        probs = np.take_along_axis(np.exp(scaled - log_sum_exp(scaled)), order, axis=1)
        before = np.cumsum(probs, axis=1) - probs  # probability of all better tokens
        for row in range(len(scaled)):
            kept = order[row, before[row] < top_p]
            hidden = np.ones(vocab_size, dtype=np.bool_)
            hidden[kept] = False
            scaled[row, hidden] = -np.inf
    return scaled


def _keep_only(scaled: Floats, ids: Int32) -> Floats:
    out = np.full_like(scaled, -np.inf)
    np.put_along_axis(out, ids, np.take_along_axis(scaled, ids, axis=1), axis=1)
    return out

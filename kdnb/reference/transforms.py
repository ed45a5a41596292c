"""From logits to the distribution that is sampled: temperature, top-k, top-p."""

import numpy as np

from kdnb.arrays import Float64, Floats, Int32
from kdnb.reference.top_k import log_sum_exp, top_k


def transform_logits(logits: Floats, temperature: float, keep: int, top_p: float) -> Float64:
    """Divide by the temperature, then hide tokens outside top-k, then outside top-p.

    Args:
        logits: [rows, vocab_size]; -inf is a token that cannot come.
        temperature: Greater than 0.
        keep: Tokens kept by top-k; 0 keeps all.
        top_p: Keep the fewest best tokens whose probabilities (after top-k) reach this sum.

    Returns:
        float64 [rows, vocab_size]; hidden tokens are -inf. Ties at a border go to the lower id, so
        that exactly `keep` tokens remain (transformers keeps all tokens that tie with the last).
    Source: the order of transformers' logits warpers.
    """
    scaled: Float64 = logits.astype(np.float64)
    if temperature < 1e-200:  # would overflow: shift first, which changes no probability
        scaled -= scaled.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        scaled /= temperature
    if not 0 < keep < scaled.shape[1]:
        if top_p == 1.0:
            return scaled
        kept = [_nucleus(row, top_p) for row in scaled]
    else:
        kept = list(top_k(logits, keep))
        if top_p < 1.0:
            kept = [ids[_nucleus(row[ids], top_p)] for row, ids in zip(scaled, kept, strict=True)]
    hidden = np.full_like(scaled, -np.inf)
    for row, ids in enumerate(kept):
        hidden[row, ids] = scaled[row, ids]
    return hidden


def softmax(logits: Floats) -> Float64:
    """Probabilities of each row: float64 [rows, vocab_size]; -inf becomes exactly 0."""
    probs: Float64 = np.exp(logits - log_sum_exp(logits))
    return probs


def draw_token(probs: Float64, draw: float) -> int:
    """The token whose share of [0, 1) holds `draw`; one of probability 0 is never drawn.

    Args:
        probs: [vocab_size]; need not sum to 1, but to more than 0.
        draw: In (0, 1).

    Returns:
        A token id.
    """
    edges = np.cumsum(probs)
    return int(np.searchsorted(edges, draw * edges[-1], side="right"))


def _nucleus(row: Float64, top_p: float) -> Int32:
    """Indices of the fewest best entries whose probabilities reach top_p."""
    log_sum = log_sum_exp(row[None])[0, 0]
    count = 64  # mostly enough, and far cheaper than sorting a vocabulary
    while True:
        ids: Int32 = top_k(row[None], count)[0]
        reached = np.cumsum(np.exp(row[ids] - log_sum))
        if reached[-1] >= top_p or len(ids) == len(row):
            return ids[: 1 + int((reached < top_p).sum())]
        count *= 8

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
    vocab_size = scaled.shape[1]
    if 0 < keep < vocab_size:
        scaled = _keep_only(scaled, list(top_k(scaled, keep)))
    if top_p < 1.0:
        log_sums = log_sum_exp(scaled)[:, 0]
        pairs = zip(scaled, log_sums.tolist(), strict=True)
        scaled = _keep_only(scaled, [_nucleus(row, log_sum, top_p) for row, log_sum in pairs])
    return scaled


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


def _nucleus(row: Float64, log_sum: float, top_p: float) -> Int32:
    """Ids of the fewest best tokens whose probabilities reach top_p."""
    count = 64  # nearly always enough, and far cheaper than sorting a vocabulary
    while True:
        ids: Int32 = top_k(row[None], count)[0]
        reached = np.cumsum(np.exp(row[ids] - log_sum))
        if reached[-1] >= top_p or len(ids) == len(row):
            return ids[: 1 + int((reached < top_p).sum())]
        count *= 8


def _keep_only(scaled: Float64, kept: list[Int32]) -> Float64:
    out = np.full_like(scaled, -np.inf)
    for row, ids in enumerate(kept):
        out[row, ids] = scaled[row, ids]
    return out

"""How long the first token of a large checkpoint will take."""

import re
import time

import numpy as np

from kdnb.checkpoint import StoredTensor
from kdnb.model import Target

EXPERT = re.compile(r"\.experts\.\d+\.")
SAMPLE_BYTES = 64 << 20  # read to measure the rate


def first_token_seconds(target: Target) -> float:
    """Estimate by reading a sample of the weights that one token needs.

    A token needs every weight but the embedding table's other rows and the experts it is not routed to;
    nearly all of its time goes into reading and dequantizing them.

    Args:
        target: The target; its weight cache is not touched.

    Returns:
        Seconds.
    """
    config = target.config
    experts = [stored for name, stored in target.tensors.items() if EXPERT.search(name)]
    others = [
        stored
        for name, stored in target.tensors.items()
        if not EXPERT.search(name) and not name.endswith("embed_tokens.weight")
    ]
    share = config.num_experts_per_tok / config.n_routed_experts if config.n_routed_experts else 0.0
    return _seconds_per_value(experts) * share * sum(stored.size for stored in experts) + (
        _seconds_per_value(others) * sum(stored.size for stored in others)
    )


def _seconds_per_value(tensors: list[StoredTensor]) -> float:
    """Measured on tensors from all over the checkpoint, until a sample's worth was read."""
    if not tensors:
        return 0.0
    began, values, read_bytes = time.perf_counter(), 0, 0
    step = max(1, len(tensors) // 16)
    for stored in tensors[::step]:
        float(np.asarray(stored.read()).max())  # touch the pages of a view too
        stored.release()
        values += stored.size
        read_bytes += stored.stored_bytes
        if read_bytes > SAMPLE_BYTES:
            break
    return (time.perf_counter() - began) / values

"""The routed experts of one layer, as a grouped matrix product."""

from collections.abc import Callable

import numpy as np

from kdnb.arrays import Floats, HostArray
from kdnb.reference.linear import linear
from kdnb.reference.swiglu import swiglu


def experts(
    x: Floats,
    topk_index: HostArray,
    topk_weight: Floats,
    weights: Callable[[int, str], Floats],
    *,
    by_row: bool = False,
) -> Floats:
    """Run every token through its experts and add up the weighted outputs.

    Args:
        x: [rows, hidden_size].
        topk_index: int [rows, k]; the experts of each row.
        topk_weight: [rows, k]; multiplies an expert's output.
        weights: weights(expert, "gate" | "up" | "down") -> [out, in]; called only for experts in use.
        by_row: See kdnb.reference.

    Returns:
        [rows, hidden_size].
    Source: DeepSeek-V3 (arXiv:2412.19437) eq. 12; the sum runs over k in routing order.
    """
    rows, k = topk_index.shape
    slots = topk_index.reshape(-1)
    order = np.argsort(slots, kind="stable")  # slots of one expert side by side
    counts = np.bincount(slots)
    chosen = np.flatnonzero(counts)
    stops = np.cumsum(counts[chosen])
    groups = list(zip(chosen.tolist(), (stops - counts[chosen]).tolist(), stops.tolist(), strict=True))
    gathered = x[order // k]

    def grouped(rows_in: Floats, part: str) -> Floats:
        outputs = [
            linear(rows_in[start:stop], weights(expert, part), by_row=by_row)
            for expert, start, stop in groups
        ]
        return np.concatenate(outputs)

    hidden = swiglu(grouped(gathered, "gate"), grouped(gathered, "up"))
    weighted = grouped(hidden, "down") * topk_weight.reshape(-1)[order, None]
    out = np.empty_like(weighted)
    out[order] = weighted
    total: Floats = out.reshape(rows, k, -1).sum(axis=1)
    return total

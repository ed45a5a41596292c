"""Keeping the accepted rows of the append window."""

from kdnb.arrays import HostArray


def compact(cache: HostArray, prefix_len: int, kept_rows: HostArray) -> None:
    """Gather the kept window rows to the front of the window, in place.

    Args:
        cache: [num_hidden_layers, capacity, width]; written.
        prefix_len: Where the window starts.
        kept_rows: int [num_emitted]; window rows, strictly ascending, so kept_rows[j] >= j and a row is
            never overwritten before it is read.
    Exact: a copy; keys are not rotated again (a kept node at depth j lands at position prefix_len + j).
    """
    cache[:, prefix_len : prefix_len + len(kept_rows)] = cache[:, prefix_len + kept_rows]

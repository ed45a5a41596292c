"""The latent cache: what attention remembers of the tokens decoded so far."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kdnb.arrays import Floats, HostArray
from kdnb.backends.base import Array, Backend
from kdnb.config import TargetConfig
from kdnb.errors import CapacityError, ShapeError


class Window(Protocol):
    """Cache rows and where the append window begins: a LatentCache, or a length on the backend."""

    @property
    def rows(self) -> Array:
        """[num_hidden_layers, capacity, width]."""

    @property
    def prefix_len(self) -> Any:
        """A number, or the backend's array of one."""


class LatentCache:
    """One row of kv_lora_rank + qk_rope_head_dim values per token and layer.

    Rows [0, prefix_len) are committed. A forward writes its rows behind them, the append window, and
    leaves prefix_len; `commit` keeps some of the window. What a failed or interrupted forward wrote
    is overwritten by the next one.

    Args:
        backend: Where the rows live.
        config: The target's config.
        capacity: Rows to make room for at first.
        grow: Whether to double the room when it is used up, up to max_position_embeddings plus one
            window; otherwise a CapacityError says how much was needed.

    Raises:
        CapacityError: if capacity is not positive.
    """

    def __init__(self, backend: Backend, config: TargetConfig, capacity: int, *, grow: bool = True) -> None:
        if capacity < 1:
            raise CapacityError(f"capacity is {capacity} rows; a cache needs 1 or more.")
        self.backend = backend
        self.prefix_len: int = 0
        self.window_len = 0
        self.grow = grow
        self._config = config
        self._rows = backend.new_cache(config.num_hidden_layers, capacity, config.cache_width)

    def __repr__(self) -> str:
        return (
            f"LatentCache(prefix_len={self.prefix_len}, window_len={self.window_len}, "
            f"capacity={self.capacity}, {self._config.num_hidden_layers} layers x "
            f"{self._config.cache_width} values)"
        )

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return int(self._rows.shape[1])

    @property
    def rows(self) -> Array:
        """The backend's array [num_hidden_layers, capacity, width]."""
        return self._rows

    def fits(self, config: TargetConfig) -> bool:
        """Whether the cache was made for a target of this config."""
        return self._config is config or self._config == config

    def open_window(self, num_rows: int) -> None:
        """Make room for `num_rows` rows behind the prefix; the forward then writes them.

        Raises:
            CapacityError: if there is no room and the cache may not grow.
        """
        needed = self.prefix_len + num_rows
        if needed > self.capacity:
            if not self.grow:
                raise CapacityError(
                    f"the cache holds {self.capacity} rows but {needed} are needed "
                    f"({self.prefix_len} committed + {num_rows} new); "
                    "make it with a larger capacity or with grow=True."
                )
            self._rows = self.backend.grow_cache(self._rows, max(needed, 2 * self.capacity))
        self.window_len = num_rows

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        if rows > self.capacity:
            self._rows = self.backend.grow_cache(self._rows, rows)

    def advance_to(self, prefix_len: int) -> None:
        """Say how many rows are committed, after a backend compacted them without the host."""
        self.prefix_len, self.window_len = prefix_len, 0

    def commit(self, rows: Sequence[int] | HostArray | None = None) -> None:
        """Keep rows of the append window: gather them to its front and advance prefix_len.

        Args:
            rows: Window rows, strictly ascending; None keeps all. The rest is cut.

        Raises:
            ShapeError: if a row is not in the window or the order does not ascend.
        """
        if rows is None:
            kept = np.arange(self.window_len)
        else:
            kept = np.asarray(rows)
            if kept.size == 0:
                kept = kept.astype(np.int64)
            if not np.issubdtype(kept.dtype, np.integer):
                raise ShapeError(f"rows has dtype {kept.dtype}; window rows are integers.")
            if kept.ndim != 1:
                raise ShapeError(f"rows has {kept.ndim} axes; pass one sequence of window rows.")
            if len(kept) and (kept[0] < 0 or kept[-1] >= self.window_len):
                raise ShapeError(
                    f"rows go from {kept[0]} to {kept[-1]} but the append window has rows "
                    f"0 to {self.window_len - 1}; commit what the last forward wrote."
                )
            if (np.diff(kept) <= 0).any():
                raise ShapeError(
                    f"rows {kept.tolist()} do not strictly ascend; pass a path from the root down."
                )
        if len(kept) and int(kept[-1]) != len(kept) - 1:  # else already in place
            self.backend.compact(self._rows, self.prefix_len, kept)
        self.prefix_len += len(kept)
        self.window_len = 0

    def truncate(self, prefix_len: int) -> None:
        """Forget committed rows from `prefix_len` on, and the window.

        Raises:
            ShapeError: if fewer rows than that are committed.
        """
        if not 0 <= prefix_len <= self.prefix_len:
            raise ShapeError(
                f"prefix_len is {prefix_len} but {self.prefix_len} rows are committed; "
                "a cache can only be cut shorter."
            )
        self.prefix_len = prefix_len
        self.window_len = 0

    def latent(self, layer: int) -> Floats:
        """Committed normed latents of a layer: host [prefix_len, kv_lora_rank]."""
        return self._committed(layer)[:, : self._config.kv_lora_rank]

    def rope_key(self, layer: int) -> Floats:
        """Committed rotated keys of a layer: host [prefix_len, qk_rope_head_dim], de-interleaved."""
        return self._committed(layer)[:, self._config.kv_lora_rank :]

    def _committed(self, layer: int) -> Floats:
        if not 0 <= layer < self._config.num_hidden_layers:
            raise ShapeError(
                f"layer is {layer} but the target has layers 0 to {self._config.num_hidden_layers - 1}."
            )
        return self.backend.cache_rows(self._rows, layer, self.prefix_len)

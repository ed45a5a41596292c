"""A drafter's own cache of keys and values."""

import numpy as np

from kdnb.backends.base import Array, Backend


class KvRows:
    """Keys and values of the committed context, one pair of growing buffers per layer."""

    def __init__(self, backend: Backend, heads: int, head_dim: int, capacity: int) -> None:
        self.length = 0
        self._backend = backend
        self._shape = (heads, head_dim)
        self._capacity = capacity
        self.keys = backend.zeros((capacity, *self._shape))
        self.values = backend.zeros((capacity, *self._shape))

    def write(self, at: int | Array, keys: Array, values: Array) -> None:
        """Write rows from row `at` on; `length` stays, so the next write covers them again.

        `at` may live on the backend; then `reserve` has made room before.
        """
        if isinstance(at, int):
            self.reserve(at + int(keys.shape[0]))
        self._backend.write_rows(self.keys, at, keys)
        self._backend.write_rows(self.values, at, values)

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all."""
        if rows <= self._capacity:
            return
        self._capacity = max(rows, 2 * self._capacity)
        for name in ("keys", "values"):
            grown = self._backend.zeros((self._capacity, *self._shape))
            if self.length:
                held = self._backend.take_rows(getattr(self, name), np.arange(self.length))
                self._backend.write_rows(grown, 0, held)
            setattr(self, name, grown)

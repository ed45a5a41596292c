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

    def write(self, keys: Array, values: Array) -> None:
        """Write rows behind the context; `length` stays, so the next write covers them again."""
        needed = self.length + int(keys.shape[0])
        if needed > self._capacity:
            self._capacity = max(needed, 2 * self._capacity)
            for name in ("keys", "values"):
                grown = self._backend.zeros((self._capacity, *self._shape))
                held = self._backend.take_rows(getattr(self, name), np.arange(self.length))
                self._backend.write_rows(grown, 0, held)
                setattr(self, name, grown)
        self._backend.write_rows(self.keys, self.length, keys)
        self._backend.write_rows(self.values, self.length, values)

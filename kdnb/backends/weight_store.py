"""Dequantized weights in host memory, under a byte budget."""

import os
import threading
from collections import OrderedDict

import ml_dtypes
import numpy as np

from kdnb.arrays import Floats
from kdnb.checkpoint import StoredTensor
from kdnb.errors import CheckpointError, ConfigError

DEFAULT_SHARE = 0.5  # of the machine's memory
BF16_EXPONENT = 0x7F80
SMALL_BYTES = 4 << 20  # of a weight that is worth copying for its layout


class WeightStore:
    """Reads weights at first use and forgets the least recently used ones beyond a budget.

    Args:
        dtype: numpy dtype of the arrays handed out.
        budget_bytes: Bytes of weights kept; None is half of the machine's memory. Weights used
            without conversion count too: their mapped pages are let go when they are forgotten.

    Raises:
        ConfigError: if the budget is negative.
    """

    def __init__(self, dtype: np.dtype[np.floating], budget_bytes: int | None) -> None:
        if budget_bytes is None:
            budget_bytes = int(_memory_bytes() * DEFAULT_SHARE)
        if budget_bytes < 0:
            raise ConfigError(f"expert_cache_bytes is {budget_bytes}; use 0 or more bytes.")
        self.dtype = dtype
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._held: OrderedDict[StoredTensor, Floats] = OrderedDict()
        self._lock = threading.RLock()  # callbacks of notebooks may run in another thread

    def fits(self, stored: StoredTensor) -> bool:
        """Whether a weight can be held at all."""
        return stored.size * self.dtype.itemsize <= self.budget_bytes

    def get(self, stored: StoredTensor) -> Floats:
        """Return a weight, dequantized, in the store's dtype; it must not be written.

        Raises:
            CheckpointError: if it holds a NaN or an infinity.
        """
        with self._lock:
            held = self._held.get(stored)
            if held is not None:
                self._held.move_to_end(stored)
                return held
            needed = stored.size * self.dtype.itemsize
            while self._held and self.used_bytes + needed > self.budget_bytes:  # before it is read
                old, forgotten = self._held.popitem(last=False)
                self.used_bytes -= forgotten.nbytes
                old.release()
                del forgotten
            array = stored.read(self.dtype)
            check_finite(stored, array)
            self.used_bytes += array.nbytes
            self._held[stored] = array
            return array

    def matrix(self, stored: StoredTensor) -> Floats:
        """A weight [out, in] for `linear`: as `get`, but a small one is laid out column by column.

        BLAS multiplies a few rows two to four times as fast with the transpose of such a matrix.
        """
        array = self.get(stored)
        if array.nbytes <= SMALL_BYTES and not array.flags.f_contiguous:
            array = np.asfortranarray(array)
            with self._lock:
                if stored in self._held:
                    self._held[stored] = array
        return array


def check_finite(stored: StoredTensor, values: Floats) -> None:
    """Refuse values of a weight that are NaN or infinite (CheckpointError)."""
    if values.dtype == ml_dtypes.bfloat16:  # numpy is slow with it: look at the exponents
        if not ((values.view(np.uint16) & BF16_EXPONENT) == BF16_EXPONENT).any():
            return
        values = values.astype(np.float32)
    if values.size and not (np.isfinite(values.max()) and np.isfinite(values.min())):
        count = int(values.size - np.isfinite(values).sum())
        raise CheckpointError(
            f"{stored.name} holds {count} of {values.size} values that are NaN or infinite; "
            "the file is damaged, fetch it again."
        )


def _memory_bytes() -> int:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30  # Windows has no sysconf: a laptop's worth

"""Arrays and launches of a kernel backend: what its ops are made of."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from kdnb.arrays import HostArray
from kdnb.backends.device import Device, DeviceArray, Replay
from kdnb.backends.weight_store import check_finite
from kdnb.checkpoint import StoredTensor
from kdnb.errors import ConfigError
from kdnb.rope_config import RopeConfig

DTYPES = ("float32", "bfloat16")
FLOAT32, INT32, UINT64 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint64)
THREADS = 128
SMALL_INTEGERS = 64  # in an index array that is kept on the device
NUM_KEPT = 256


class KernelMemory:
    """Memory verbs and launches; arguments as KernelBackend."""

    def __init__(self, device: Device, dtype: str = "float32", deterministic: bool = False) -> None:
        if dtype not in DTYPES:
            raise ConfigError(
                f'dtype "{dtype}" is not one the {device.name} backend computes in; '
                f"use {' or '.join(DTYPES)}."
            )
        self.device = device
        self.name = device.name
        self.dtype = dtype
        self.real: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else FLOAT32
        self._always_by_row = deterministic
        self._asked = threading.local()
        self._kept_integers: OrderedDict[bytes, DeviceArray] = OrderedDict()
        self.retained: list[DeviceArray] | None = None  # while a graph is captured: what it must keep alive
        self._inv_freq: dict[tuple[RopeConfig, int], DeviceArray] = {}  # of DenseKernels.rope
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        mode = ", deterministic=True" if self._always_by_row else ""
        return f"{type(self).__name__}({self.device!r}, dtype={self.dtype!r}{mode})"

    @contextmanager
    def row_by_row(self) -> Iterator[None]:
        self._asked.depth = getattr(self._asked, "depth", 0) + 1
        try:
            yield
        finally:
            self._asked.depth -= 1

    @property
    def deterministic(self) -> bool:
        """Whether this thread computes without a library's products now."""
        return self._always_by_row or getattr(self._asked, "depth", 0) > 0

    # --- memory -------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: "np.dtype[Any] | None" = None) -> DeviceArray:
        """Uninitialised memory of the backend's dtype or another."""
        dtype = self.real if dtype is None else dtype
        sizes = tuple(int(size) for size in shape)
        num_bytes = max(1, prod(sizes)) * dtype.itemsize
        return DeviceArray(
            sizes, dtype, self.device.allocate(num_bytes, f"an array {list(sizes)} of {dtype}")
        )

    def put(self, host: HostArray, dtype: "np.dtype[Any] | None" = None) -> DeviceArray:
        """A host array on the device, in its own dtype or another."""
        host = np.ascontiguousarray(host, dtype=dtype)
        array = self.empty(host.shape, host.dtype)
        if host.size:
            self.device.write(array, host)
        return array

    def upload(self, array: HostArray) -> DeviceArray:
        floats = np.issubdtype(array.dtype, np.floating)
        return self.put(array, self.real if floats else None)

    def download(self, x: DeviceArray) -> HostArray:
        host = self.device.read(x)
        return host.astype(np.float32) if host.dtype == self.real else host

    def zeros(self, shape: Sequence[int]) -> DeviceArray:
        return self.zeros_of(shape, self.real)

    def zeros_of(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> DeviceArray:
        """A cleared array of any dtype."""
        array = self.empty(shape, dtype)
        self.device.clear(array)
        return array

    def weight(self, stored: StoredTensor) -> DeviceArray:
        """Matrices in the backend's dtype, vectors (norms, biases) in float32."""
        dtype = self.real if len(stored.shape) == 2 else FLOAT32
        values = stored.read(dtype)
        check_finite(stored, values)
        array = self.put(values, dtype)
        stored.release()
        return array

    def take_rows(self, x: DeviceArray, rows: HostArray | DeviceArray) -> DeviceArray:
        indices = self._indices(rows)
        out = self.empty((len(indices), *x.shape[1:]), x.dtype)
        values = (
            prod(x.shape[1:]) * x.dtype.itemsize // self.real.itemsize
        )  # float32 rows move as pairs of bf16
        self.launch("rows", "take_rows", (len(indices),), [x, indices, out, values])
        return out

    def write_rows(self, destination: DeviceArray, offset: int | DeviceArray, x: DeviceArray) -> None:
        size = prod(x.shape[1:])
        self.launch("rows", "write_rows", (len(x),), [destination, self._length(offset), x, size])

    def concat(self, arrays: Sequence[DeviceArray]) -> DeviceArray:
        width = sum(x.shape[-1] for x in arrays)
        out = self.empty((*arrays[0].shape[:-1], width))
        column = 0
        for x in arrays:
            rows, size = prod(x.shape[:-1]), x.shape[-1]
            self.launch("rows", "concat", (rows,), [x, out, size, column, width])
            column += size
        return out

    def new_cache(self, num_layers: int, capacity: int, width: int) -> DeviceArray:
        return self.zeros((num_layers, capacity, width))

    def grow_cache(self, cache: DeviceArray, capacity: int) -> DeviceArray:
        layers, held, width = cache.shape
        grown = self.zeros((layers, capacity, width))
        for layer in range(layers):
            rows = cache.view((held, width), layer * held * width)
            self.device.copy(grown.view((held, width), layer * capacity * width), rows)
        return grown

    def cache_rows(self, cache: DeviceArray, layer: int, num_rows: int) -> HostArray:
        if num_rows == 0:
            return np.empty((0, cache.shape[2]), dtype=np.float32)
        return self.download(self._layer(cache, layer).view((num_rows, cache.shape[2])))

    # --- launches -----------------------------------------------------------------------------
    def capture(
        self,
        step: Callable[[int], None],
        reset: Callable[[], None],
        *,
        repeat: bool,
        done: Callable[[], bool],
    ) -> Replay:
        """Make a graph of the launches of `step`, once or until `done`.

        Args:
            step: Issues the launches; its argument is the handle that decides whether to go on.
            reset: Puts back what one run of `step` changes: it is run once before it is captured.
            repeat: Whether to run again until the condition is unset.
            done: Asks the device whether it is; for devices without graphs.
        """
        with self._lock:
            self.retained = []
            try:
                return self.device.capture(step, reset, self.retained, repeat=repeat, done=done)
            finally:
                self.retained = None

    def launch(
        self,
        name: str,
        entry: str,
        grid: Sequence[int],
        arguments: Sequence[Any],
        constants: "dict[str, Any] | None" = None,
        block: int = THREADS,
        shared: int = 0,
    ) -> None:
        """One launch, specialised for the backend's dtype; see Device.launch."""
        specialised = {"REAL_IS_BF16": self.dtype == "bfloat16", **(constants or {})}
        self.device.launch(name, entry, specialised, grid, block, arguments, shared)

    def _layer(self, cache: DeviceArray, layer: int) -> DeviceArray:
        _, capacity, width = cache.shape
        return cache.view((capacity, width), layer * capacity * width)

    def _indices(self, values: HostArray | DeviceArray) -> DeviceArray:
        """Integers in device memory; few of them are kept there, for the next layer and the next round."""
        if isinstance(values, DeviceArray):
            return values
        host = np.asarray(values, dtype=np.int32)
        if host.size > SMALL_INTEGERS:
            return self.put(host)
        key = host.tobytes()
        with self._lock:
            kept = self._kept_integers.get(key)
            if kept is None:
                kept = self._kept_integers[key] = self.put(host)
                if len(self._kept_integers) > NUM_KEPT:
                    self._kept_integers.popitem(last=False)
            self._kept_integers.move_to_end(key)
            if self.retained is not None:
                self.retained.append(kept)
            return kept

    def _length(self, value: int | DeviceArray) -> DeviceArray:
        return value if isinstance(value, DeviceArray) else self._indices(np.array([value]))

    def _as_float(self, x: DeviceArray) -> DeviceArray:
        """Values that ops compute in float32; an edit may have brought them in the backend's dtype."""
        return x if x.dtype == FLOAT32 else self.put(self.download(x), FLOAT32)

"""A CPU that plays a GPU: kernels compiled by the host's C++ compiler, CUDA threads as fibers."""

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from kdnb.arrays import HostArray
from kdnb.backends.device import DeviceArray, Mailbox, as_scalar
from kdnb.errors import CapacityError, ConfigError, KernelError
from kdnb.kernels.disk_cache import DiskCache
from kdnb.kernels.host import load_library
from kdnb.kernels.source import Constant, KernelSource

ORDERS = ("forward", "reversed", "shuffled")
GUARD = 1024  # bytes on both sides of every allocation
GUARD_BYTE = 0xA5
POISON = 0xFF  # of new memory: NaN for floats, -1 for integers


class HostMemory:
    """Memory of the emulated device, guarded on both sides."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._bytes = np.full(num_bytes + 2 * GUARD, POISON, dtype=np.uint8)
        self._bytes[:GUARD] = self._bytes[GUARD + num_bytes :] = GUARD_BYTE
        self.pointer = int(self._bytes.ctypes.data) + GUARD

    @property
    def values(self) -> HostArray:
        """The bytes between the guards."""
        return self._bytes[GUARD : GUARD + self.num_bytes]

    def overrun(self) -> str | None:
        """Which guard was written over, if one was."""
        if (self._bytes[:GUARD] != GUARD_BYTE).any():
            return "before the beginning"
        if (self._bytes[GUARD + self.num_bytes :] != GUARD_BYTE).any():
            return "behind the end"
        return None


class EmulatedDevice:
    """Runs kernels on the CPU, one fiber per CUDA thread.

    Args:
        order: In which order the threads of a block are resumed at every turn: "forward", "reversed" or
            "shuffled"; a result that depends on it shows a missing barrier.
        seed: Of the shuffled order.
        threads: Blocks that run at once; None is the number of cores.
        sanitize: Build kernels with AddressSanitizer and UndefinedBehaviorSanitizer.
        cache: Where built kernels are kept.
        bodies: Kernel sources to use instead of the files', by name.

    Raises:
        BackendUnavailable: at the first launch, if there is no C++ compiler.
        ConfigError: if order is unknown.
    """

    name = "emulated"

    def __init__(
        self,
        *,
        order: Literal["forward", "reversed", "shuffled"] = "forward",
        seed: int = 1,
        threads: int | None = None,
        sanitize: bool = False,
        cache: DiskCache | None = None,
        bodies: Mapping[str, str] | None = None,
    ) -> None:
        if order not in ORDERS:
            raise ConfigError(f'order is "{order}"; use one of {", ".join(ORDERS)}.')
        self._order, self._seed = ORDERS.index(order), seed
        self._threads = threads or os.cpu_count() or 1
        self._sanitize = sanitize
        self._cache = cache or DiskCache()
        self._bodies = dict(bodies or {})
        self._loaded: dict[
            tuple[str, tuple[tuple[str, Constant], ...]], tuple[KernelSource, ctypes.CDLL]
        ] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return "EmulatedDevice()"

    def allocate(self, num_bytes: int, purpose: str) -> HostMemory:
        try:
            return HostMemory(num_bytes)
        except MemoryError:
            raise CapacityError(f"no memory for {purpose}: {num_bytes:,} bytes are needed.") from None

    def write(self, to: DeviceArray, host: HostArray) -> None:
        self._bytes(to)[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)

    def read(self, array: DeviceArray) -> HostArray:
        return self._bytes(array).copy().view(array.dtype).reshape(array.shape)

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        self._bytes(to)[: source.num_bytes] = self._bytes(source)

    def clear(self, array: DeviceArray) -> None:
        self._bytes(array)[:] = 0

    def launch(
        self,
        name: str,
        entry: str,
        constants: Mapping[str, Constant],
        grid: Sequence[int],
        block: int,
        arguments: Sequence[Any],
        shared: int = 0,
    ) -> None:
        if 0 in grid:
            return
        with self._lock:
            source, library = self._library(name, constants)
            values = [
                _c_value(as_scalar(kind, value, f"{name}.cu: {entry} argument {at}"))
                for at, (kind, value) in enumerate(zip(source.entries[entry], arguments, strict=True))
            ]
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            sizes = (ctypes.c_uint * 6)(*grid, *(1,) * (3 - len(grid)), block, 1, 1)
            message = ctypes.create_string_buffer(256)
            failed = getattr(library, f"launch_{entry}")(
                sizes,
                ctypes.c_size_t(shared),
                self._order,
                ctypes.c_uint64(self._seed),
                self._threads,
                message,
                pointers,
            )
        if failed:
            raise KernelError(f"{name}.cu: {entry}: {message.value.decode()}.")
        for at, value in enumerate(arguments):
            overrun = isinstance(value, DeviceArray) and value.memory.overrun()  # type: ignore[attr-defined]
            if overrun:
                raise KernelError(f"{name}.cu: {entry} wrote {overrun} of its argument {at}, {value!r}.")

    def sync(self) -> None:
        """Nothing runs beside the host."""

    def linear(self, x: DeviceArray, weight: DeviceArray, y: DeviceArray) -> bool:
        return False  # what runs here is kdnb's own kernel

    def mailbox(self, count: int) -> Mailbox:
        memory = self.allocate(4 * count, "a mailbox")
        memory.values[:] = 0
        return Mailbox(memory.values.view(np.int32), DeviceArray((count,), np.dtype(np.int32), memory))

    def capture(
        self,
        step: Callable[[int], None],
        reset: Callable[[], None],
        retained: Sequence[DeviceArray],
        *,
        repeat: bool,
        done: Callable[[], bool],
    ) -> "Calls":
        return Calls(step, done if repeat else None)

    def _bytes(self, array: DeviceArray) -> HostArray:
        assert isinstance(array.memory, HostMemory)
        return array.memory.values[array.offset : array.offset + array.num_bytes]

    def _library(self, name: str, constants: Mapping[str, Constant]) -> tuple[KernelSource, ctypes.CDLL]:
        key = (name, tuple(sorted(constants.items())))
        if key not in self._loaded:
            source = KernelSource.of(name, constants, self._bodies.get(name))
            self._loaded[key] = source, load_library(source, self._cache, sanitize=self._sanitize)
        return self._loaded[key]


class Calls:
    """A graph's place on a device without graphs: the launches are issued each time."""

    def __init__(self, step: Callable[[int], None], done: Callable[[], bool] | None) -> None:
        self._step, self._done = step, done

    def launch(self) -> None:
        self._step(0)

    def is_done(self) -> bool:
        """The next round, if there is one: host and device take turns here."""
        if self._done is None or self._done():
            return True
        self._step(0)
        return False

    def wait(self) -> None:
        """Nothing runs beside the host."""


def _c_value(scalar: Any) -> Any:
    if isinstance(scalar, np.int32):
        return ctypes.c_int32(int(scalar))
    if isinstance(scalar, np.int64):
        return ctypes.c_int64(int(scalar))
    if isinstance(scalar, np.float32):
        return ctypes.c_float(float(scalar))
    return ctypes.c_void_p(scalar)

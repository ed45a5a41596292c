"""Device memory that is kept for the next array of its size."""

import threading
from typing import Any

from kdnb.errors import CapacityError

SMALLEST = 512  # bytes of a block
LARGE = 2 << 20  # blocks above 1 MiB are multiples of this


class PooledMemory:
    """A block of a pool; it goes back when the object goes. Work on one stream, so at once."""

    __slots__ = ("_pool", "buffer", "num_bytes", "pointer")

    def __init__(self, pool: "MemoryPool", buffer: Any) -> None:
        self._pool = pool
        self.buffer = buffer
        self.num_bytes = int(buffer.size)
        self.pointer = int(buffer.handle)

    def __del__(self) -> None:
        self._pool.give_back(self.buffer)


class MemoryPool:
    """Blocks of device memory, kept by size for the next array of that size.

    Args:
        resource: cuda.core's memory resource.
        stream: The stream that all work is on.
        purpose_of_all: What to say the memory is for where an allocation fails.
    """

    def __init__(self, resource: Any, stream: Any) -> None:
        self._resource = resource
        self._stream = stream
        self._free: dict[int, list[Any]] = {}
        self.held_bytes = 0  # given out or kept
        self._lock = threading.RLock()

    def take(self, num_bytes: int, purpose: str) -> PooledMemory:
        """A block of `num_bytes` or more."""
        size = _size_class(num_bytes)
        with self._lock:
            kept = self._free.get(size)
            if kept:
                return PooledMemory(self, kept.pop())
            try:
                buffer = self._allocate(size)
            except Exception:
                self.trim()  # what is kept in other sizes may be enough
                try:
                    buffer = self._allocate(size)
                except Exception as problem:
                    raise CapacityError(
                        f"no device memory for {purpose}: {num_bytes:,} bytes are needed beside "
                        f"{self.held_bytes:,} in use ({_free_bytes():,} free on the device): {problem}. "
                        "Use a shorter context, a smaller node_budget or bfloat16."
                    ) from None
            self.held_bytes += size
            return PooledMemory(self, buffer)

    def give_back(self, buffer: Any) -> None:
        """Keep a block for the next array of its size."""
        with self._lock:
            self._free.setdefault(int(buffer.size), []).append(buffer)

    def trim(self) -> None:
        """Return to the device what is not in use."""
        with self._lock:
            for size, buffers in self._free.items():
                for buffer in buffers:
                    buffer.close(self._stream)
                    self.held_bytes -= size
            self._free.clear()
            self._stream.sync()

    def sibling(self) -> "MemoryPool":
        """An empty pool on the same memory resource."""
        return MemoryPool(self._resource, self._stream)

    def _allocate(self, size: int) -> Any:
        return self._resource.allocate(size, stream=self._stream)


def _size_class(num_bytes: int) -> int:
    if num_bytes <= 1 << 20:
        return max(SMALLEST, 1 << (num_bytes - 1).bit_length())
    return -(-num_bytes // LARGE) * LARGE


def _free_bytes() -> int:
    from cuda.bindings import driver

    return int(driver.cuMemGetInfo()[1])

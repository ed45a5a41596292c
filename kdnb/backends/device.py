"""Memory and launches of a machine that runs kernels: what the kernel backend asks of a device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from kdnb.arrays import HostArray
from kdnb.kernels.source import Constant, Kind

Argument = "DeviceArray | int | float | None"


class Memory(Protocol):
    """A piece of device memory; it is given back when the object goes."""

    @property
    def pointer(self) -> int:
        """Address of the first byte."""

    @property
    def num_bytes(self) -> int:
        """Bytes there is room for."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A contiguous array in device memory; only its shape is public above the backends."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    memory: Memory
    offset: int = 0  # in bytes

    def __repr__(self) -> str:
        return f"DeviceArray({list(self.shape)}, {self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def pointer(self) -> int:
        """Address of the first value."""
        return self.memory.pointer + self.offset

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, shape: Sequence[int], first: int = 0) -> "DeviceArray":
        """The same memory from value `first` on, in another shape."""
        return DeviceArray(tuple(shape), self.dtype, self.memory, self.offset + first * self.dtype.itemsize)


class Replay(Protocol):
    """Launches that can be run again without issuing them one by one."""

    def launch(self) -> None:
        """Start; returns at once where the device runs beside the host."""

    def is_done(self) -> bool:
        """Whether the last launch has ended."""

    def wait(self) -> None:
        """Until the last launch has ended."""


@dataclass(frozen=True)
class Mailbox:
    """Integers that host and device both see while kernels run.

    Args:
        host: int32 [count], the host's view.
        array: The device's.
        memory: What keeps both alive.
    """

    host: HostArray
    array: DeviceArray
    memory: Any = None


class Device(Protocol):
    """A GPU, or a CPU that plays one."""

    name: str

    def allocate(self, num_bytes: int, purpose: str) -> Memory:
        """Uninitialised memory; CapacityError names the purpose and the bytes where there is none."""

    def write(self, to: DeviceArray, host: HostArray) -> None:
        """Copy from the host."""

    def read(self, array: DeviceArray) -> HostArray:
        """Copy to the host, when all work before is done."""

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        """Copy within the device; as many bytes as `source` has."""

    def clear(self, array: DeviceArray) -> None:
        """Set all bytes to 0."""

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
        """Run one kernel.

        Args:
            name: File of kdnb/cuda_src.
            entry: The kernel in it.
            constants: What its source is specialised by.
            grid: Blocks, up to three numbers.
            block: Threads of a block.
            arguments: In the kernel's order: arrays, None for a null pointer, numbers.
            shared: Bytes of dynamic shared memory.
        """

    def sync(self) -> None:
        """Wait for all work."""

    def linear(self, x: DeviceArray, weight: DeviceArray, y: DeviceArray) -> bool:
        """A library's matrix product, kdnb.reference.linear; False where there is no library."""

    def mailbox(self, count: int) -> Mailbox:
        """Integers that both sides see, cleared."""

    def capture(
        self,
        step: Callable[[int], None],
        reset: Callable[[], None],
        retained: Sequence[DeviceArray],
        *,
        repeat: bool,
        done: Callable[[], bool],
    ) -> Replay:
        """See KernelBackend.capture; `retained` fills while `step` runs, and the replay keeps it alive."""


def as_scalar(kind: Kind, value: Any, place: str) -> Any:
    """An argument as the kernel's parameter takes it: pointers as integers, numbers in numpy's types."""
    if kind == "pointer":
        if value is None:
            return 0
        if not isinstance(value, DeviceArray):
            raise TypeError(f"{place} is a pointer, but got {value!r}")
        return value.pointer
    if not isinstance(value, int | float | np.number):
        raise TypeError(f"{place} is a number, but got {value!r}")
    convert: Any = {"int": np.int32, "int64": np.int64, "float": np.float32}[kind]
    return convert(value)

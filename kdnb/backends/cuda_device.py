"""An NVIDIA GPU through cuda.core: kernels compiled at run time, one stream, a pool of memory."""

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdnb.arrays import HostArray
from kdnb.backends.blas import WORKSPACE_BYTES, Blas
from kdnb.backends.device import DeviceArray, Mailbox, as_scalar
from kdnb.backends.memory_pool import MemoryPool, PooledMemory
from kdnb.errors import BackendUnavailable, KernelError
from kdnb.kernels.disk_cache import DiskCache
from kdnb.kernels.nvrtc import Cubin, compile_cubin
from kdnb.kernels.source import Constant, KernelSource, Kind

UNASKED_SHARED = 16 << 10  # bytes of dynamic shared memory that fit beside any kernel's static ones
# architectures with features of their own, which plain "sm_90" leaves out
FEATURED = {90: "90a", 100: "100a", 103: "103a", 120: "120a", 121: "121a"}


class CudaDevice:
    """One GPU.

    Args:
        index: Which one.
        cache: Where compiled kernels are kept.
        bodies: Kernel sources to use instead of the files', by name.

    Raises:
        BackendUnavailable: if there is no driver, no GPU, or cuda-python is missing; the message says which.
    """

    name = "cuda"

    def __init__(
        self, index: int = 0, *, cache: DiskCache | None = None, bodies: Mapping[str, str] | None = None
    ) -> None:
        probe()
        from cuda.core import Device, DeviceMemoryResource

        self._device = Device(index)
        self._device.set_current()
        self._seen = threading.local()
        self._seen.current = True
        self.stream = self._device.create_stream()
        self.target: Any = self.stream  # or a graph being captured
        self.pool = MemoryPool(DeviceMemoryResource(self._device), self.stream)
        self._cache = cache or DiskCache()
        self._bodies = dict(bodies or {})
        self._cubins: dict[tuple[Any, ...], tuple[Cubin, Any]] = {}
        self._kernels: dict[tuple[Any, ...], tuple[Any, tuple[Kind, ...]]] = {}
        self._configs: dict[tuple[Any, ...], Any] = {}
        self._widest: dict[int, int] = {}  # dynamic shared memory that a kernel was allowed
        self.lock = threading.RLock()
        self._blas: Blas | None = None
        if Blas.is_installed():
            self._blas = Blas(self.allocate(WORKSPACE_BYTES, "cuBLAS"))

    def __repr__(self) -> str:
        return f"CudaDevice({self._device.name}, {self.arch})"

    @property
    def arch(self) -> str:
        """The architecture that kernels are built for."""
        capability = int(self._device.arch)
        return f"sm_{FEATURED.get(capability, capability)}"

    def allocate(self, num_bytes: int, purpose: str) -> PooledMemory:
        self.enter()
        return self.pool.take(num_bytes, purpose)

    def write(self, to: DeviceArray, host: HostArray) -> None:
        from cuda.bindings import driver

        self.enter()
        host = np.ascontiguousarray(host)
        _check(driver.cuMemcpyHtoDAsync(to.pointer, host.ctypes.data, host.nbytes, self.stream.handle))

    def read(self, array: DeviceArray) -> HostArray:
        from cuda.bindings import driver

        self.enter()
        host = np.empty(array.shape, dtype=array.dtype)
        if host.size:
            _check(driver.cuMemcpyDtoHAsync(host.ctypes.data, array.pointer, host.nbytes, self.stream.handle))
        self.sync()
        return host

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        from cuda.bindings import driver

        self.enter()
        _check(driver.cuMemcpyDtoDAsync(to.pointer, source.pointer, source.num_bytes, self.handle))

    def clear(self, array: DeviceArray) -> None:
        from cuda.bindings import driver

        self.enter()
        _check(driver.cuMemsetD8Async(array.pointer, 0, max(1, array.num_bytes), self.handle))

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
        from cuda.core import LaunchConfig, launch

        if 0 in grid:
            return
        key = (name, entry, *constants.items())
        with self.lock:
            self.enter()
            if key not in self._kernels:
                self._kernels[key] = self._kernel(name, entry, constants)
            kernel, kinds = self._kernels[key]
            shape = (*grid, block, shared)
            if shape not in self._configs:
                self._configs[shape] = LaunchConfig(grid=tuple(grid), block=block, shmem_size=shared)
            if shared > UNASKED_SHARED:
                self._allow_shared(kernel, shared)
            values = [as_scalar(kind, value, entry) for kind, value in zip(kinds, arguments, strict=True)]
            launch(self.target, self._configs[shape], kernel, *values)

    def linear(self, x: DeviceArray, weight: DeviceArray, y: DeviceArray) -> bool:
        if self._blas is None:
            return False
        with self.lock:
            self.enter()
            self._blas.linear(int(self.handle), x, weight, y)
        return True

    def cubin(self, name: str, constants: Mapping[str, Constant]) -> Cubin:
        """The compiled source of a kernel: its registers, shared memory, SASS."""
        return self._module(name, constants)[0]

    def sync(self) -> None:
        """Wait for all work.

        Raises:
            KernelError: if a kernel failed; the GPU can then not be used by this process any more.
        """
        from cuda.bindings import driver

        self.enter()
        _check(driver.cuStreamSynchronize(self.stream.handle))

    @property
    def handle(self) -> Any:
        """The stream that work goes to now, for the driver's own calls."""
        return self.stream.handle if self.target is self.stream else self.target.stream.handle

    def mailbox(self, count: int) -> Mailbox:
        from cuda.core import LegacyPinnedMemoryResource

        self.enter()
        buffer = LegacyPinnedMemoryResource().allocate(4 * count)  # the pooled kind is not mapped for kernels
        host = np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(int(buffer.handle)))
        host[:] = 0
        return Mailbox(host, DeviceArray((count,), host.dtype, _Pinned(buffer)), buffer)

    def capture(
        self,
        step: Callable[[int], None],
        reset: Callable[[], None],
        retained: Sequence[DeviceArray],
        *,
        repeat: bool,
        done: Callable[[], bool],
    ) -> "Graph":
        with self.lock, self._private_pool() as pool:
            self.enter()
            step(0)  # loads kernels and fills the pool: neither may happen during a capture
            reset()
            self.sync()
            builder = self._device.create_graph_builder().begin_building()
            with self._on(builder):
                if repeat:
                    condition = builder.create_condition(default_value=1)
                    body = builder.while_loop(condition).begin_building()
                    with self._on(body):
                        step(int(condition.handle))
                    body.end_building()
                else:
                    step(0)
            return Graph(builder.end_building().complete(), self, pool, list(retained))

    @contextmanager
    def _on(self, builder: Any) -> Iterator[None]:
        """Inside it launches become nodes of a graph."""
        before, self.target = self.target, builder
        try:
            yield
        finally:
            self.target = before

    @contextmanager
    def _private_pool(self) -> Iterator[MemoryPool]:
        """Inside it arrays come from memory that nothing else will use: a graph writes it at every replay."""
        before, self.pool = self.pool, self.pool.sibling()
        try:
            yield self.pool
        finally:
            self.pool = before

    def enter(self) -> None:
        """Make the GPU current in this thread: callbacks may come from any."""
        if not getattr(self._seen, "current", False):
            self._device.set_current()
            self._seen.current = True

    def _module(self, name: str, constants: Mapping[str, Constant]) -> tuple[Cubin, Any]:
        from cuda.core import ObjectCode

        key = (name, *sorted(constants.items()))
        if key not in self._cubins:
            source = KernelSource.of(name, constants, self._bodies.get(name))
            cubin = compile_cubin(source, self.arch, self._cache)
            self._cubins[key] = cubin, ObjectCode.from_cubin(cubin.code)
        return self._cubins[key]

    def _kernel(
        self, name: str, entry: str, constants: Mapping[str, Constant]
    ) -> tuple[Any, tuple[Kind, ...]]:
        cubin, module = self._module(name, constants)
        return module.get_kernel(entry), cubin.source.entries[entry]

    def _allow_shared(self, kernel: Any, shared: int) -> None:
        """More than 48 KB, static and dynamic together, has to be asked for."""
        from cuda.bindings import driver

        if self._widest.get(id(kernel), 0) >= shared:
            return
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        index = driver.CUdevice(self._device.device_id)
        _check(driver.cuKernelSetAttribute(attribute, shared, kernel.handle, index))
        self._widest[id(kernel)] = shared


class Graph:
    """Captured launches; see Replay."""

    def __init__(self, graph: Any, device: CudaDevice, *kept: Any) -> None:
        self._graph, self._device = graph, device
        self._kept = kept  # the memory that the launches use
        self._end: Any = None

    def launch(self) -> None:
        self._device.enter()
        self._graph.launch(self._device.stream)
        self._end = self._device.stream.record()

    def is_done(self) -> bool:
        return bool(self._end.is_done)

    def wait(self) -> None:
        self._device.sync()


@dataclass(frozen=True)
class _Pinned:
    """Host memory that the GPU sees, as an array's memory."""

    buffer: Any

    @property
    def pointer(self) -> int:
        return int(self.buffer.handle)

    @property
    def num_bytes(self) -> int:
        return int(self.buffer.size)


def probe() -> None:
    """Refuse, at once and with the reason, where CUDA cannot run.

    The driver is asked by cuInit alone: other calls of cuda.core can hang without one.

    Raises:
        BackendUnavailable: if cuda-python, a driver or a GPU is missing.
    """
    try:
        from cuda.bindings import driver
    except ImportError as problem:
        raise BackendUnavailable(
            f'the cuda backend needs cuda-python ({problem}): pip install "kdnb[cu13]", or use '
            'backend="emulated" or "numpy".'
        ) from None
    try:
        error = driver.cuInit(0)[0]
    except Exception as problem:
        raise BackendUnavailable(
            f"no NVIDIA driver can be loaded here ({str(problem).splitlines()[0]}); kernels can be compiled "
            'but not launched. Use backend="emulated" to run them on the CPU, or "numpy".'
        ) from None
    if int(error):
        raise BackendUnavailable(
            f"the NVIDIA driver does not start: cuInit gives {error.name} ({int(error)}). Is there a GPU, "
            'and is its driver loaded? Use backend="emulated" or "numpy" meanwhile.'
        )
    count = driver.cuDeviceGetCount()[1]
    if not count:
        raise BackendUnavailable('the NVIDIA driver sees no GPU; use backend="emulated" or "numpy".')


def _check(result: tuple[Any, ...]) -> None:
    error = result[0]
    if int(error):
        raise KernelError(
            f"the GPU reports {error.name} ({int(error)}): a kernel or a copy before this point failed, and "
            "this process cannot use the GPU any more. Restart it; compute-sanitizer names the kernel."
        )

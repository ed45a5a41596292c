"""Matrix products by cuBLAS, through nvmath-python."""

import ctypes
from typing import Any

from kdnb.backends.device import DeviceArray, Memory

WORKSPACE_BYTES = 32 << 20  # what cuBLAS asks for on Hopper
HOST_ONE, HOST_ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


class Blas:
    """cuBLAS on one stream at a time.

    float32 products are plain float32 (never tf32); bfloat16 ones are summed in float32.

    Args:
        workspace: Memory for cuBLAS itself: with its own, a captured graph could not be replayed safely.
    """

    def __init__(self, workspace: Memory) -> None:
        from nvmath import CudaDataType
        from nvmath.bindings import cublas

        self._cublas = cublas
        self._handle = cublas.create()
        self._workspace = workspace
        self._stream: int | None = None
        self._types = {4: int(CudaDataType.CUDA_R_32F), 2: int(CudaDataType.CUDA_R_16BF)}
        self._compute = {
            4: int(cublas.ComputeType.COMPUTE_32F_PEDANTIC),
            2: int(cublas.ComputeType.COMPUTE_32F),
        }

    @staticmethod
    def is_installed() -> bool:
        """Whether nvmath-python and cuBLAS can be loaded."""
        try:
            from nvmath.bindings import cublas

            cublas.destroy(cublas.create())
        except Exception:  # a missing package, a missing library, an older driver: each its own exception
            return False
        return True

    def linear(self, stream: int, x: DeviceArray, weight: DeviceArray, y: DeviceArray) -> None:
        """Y [rows, outs] = x [rows, columns] times weight [outs, columns] transposed."""
        rows, columns = x.shape
        outs = weight.shape[0]
        self._use(stream)
        one, zero = ctypes.addressof(HOST_ONE), ctypes.addressof(HOST_ZERO)
        size = x.dtype.itemsize
        # cuBLAS counts columns first: y transposed [outs, rows] = weight transposed twice, times x transposed
        self._cublas.gemm_ex(
            self._handle,
            self._cublas.Operation.T,
            self._cublas.Operation.N,
            outs,
            rows,
            columns,
            one,
            weight.pointer,
            self._types[size],
            columns,
            x.pointer,
            self._types[size],
            columns,
            zero,
            y.pointer,
            self._types[y.dtype.itemsize],
            outs,
            self._compute[size],
            -1,  # CUBLAS_GEMM_DEFAULT
        )

    def _use(self, stream: int) -> None:
        if stream != self._stream:
            self._cublas.set_stream(self._handle, stream)
            self._cublas.set_workspace(self._handle, self._workspace.pointer, WORKSPACE_BYTES)
            self._stream = stream

    def __del__(self) -> None:
        handle: Any = getattr(self, "_handle", None)
        if handle is not None:
            self._cublas.destroy(handle)

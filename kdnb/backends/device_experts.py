"""A layer's routed experts on the device: packed INT4 as stored, or in the backend's dtype."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kdnb.backends.base import ExpertTensors
from kdnb.backends.device import DeviceArray
from kdnb.backends.weight_store import check_finite
from kdnb.checkpoint import StoredTensor
from kdnb.errors import CheckpointError
from kdnb.kernels.source import Constant

if TYPE_CHECKING:
    from kdnb.backends.kernel_backend import KernelBackend

PARTS = ("gate", "up", "down")
Part = tuple[DeviceArray, DeviceArray | None]  # values and, where packed, scales: [experts, ...]


@dataclass(frozen=True, eq=False)
class DeviceExperts:
    """Weights of all experts of one layer, side by side.

    Args:
        count: Experts.
        inner: moe_intermediate_size.
        gate: Values and scales of the gate projections; likewise up and down.
        constants: What experts.cu is specialised by.
    """

    count: int
    inner: int
    gate: Part
    up: Part
    down: Part
    constants: dict[str, Constant]


def upload_experts(backend: "KernelBackend", stored: Sequence[ExpertTensors]) -> DeviceExperts:
    """Copy a layer's experts to the device, one expert at a time."""
    group = _packed_group(stored)
    scale_dtype = np.dtype(np.float32)
    if group:
        scales = [getattr(expert, part).parts()["weight_scale"].dtype for expert in stored for part in PARTS]
        if all(dtype == ml_dtypes.bfloat16 for dtype in scales):
            scale_dtype = np.dtype(ml_dtypes.bfloat16)
    upload = _upload_packed if group else _upload_plain
    parts = {
        part: upload(backend, [getattr(expert, part) for expert in stored], scale_dtype) for part in PARTS
    }
    constants: dict[str, Constant] = {
        "IS_PACKED": bool(group),
        "GROUP": group or 4,
        "SCALE_IS_BF16": scale_dtype.itemsize == 2,
    }
    return DeviceExperts(len(stored), stored[0].gate.shape[0], constants=constants, **parts)


def _packed_group(stored: Sequence[ExpertTensors]) -> int:
    """Columns per scale if all experts are INT4 that the kernel reads as it is stored, otherwise 0."""
    groups = set()
    for expert in stored:
        for part in PARTS:
            tensor: StoredTensor = getattr(expert, part)
            if tensor.kind != "int4" or tensor.shape[1] % 8:
                return 0
            groups.add(tensor.shape[1] // tensor.parts()["weight_scale"].shape[1])
    group = groups.pop()
    return group if not groups and group % 4 == 0 else 0


def _upload_packed(
    backend: "KernelBackend", stored: Sequence[StoredTensor], scale_dtype: "np.dtype[Any]"
) -> Part:
    first = stored[0].parts()
    values = backend.empty((len(stored), *first["weight_packed"].shape), np.dtype(np.int32))
    scales = backend.empty((len(stored), *first["weight_scale"].shape), scale_dtype)
    for expert, tensor in enumerate(stored):
        parts = tensor.parts()
        scale = parts["weight_scale"]
        if not np.isfinite(scale.astype(np.float32)).all():
            raise CheckpointError(f"{tensor.name}: weight_scale holds NaN or infinity; fetch the file again.")
        _write(backend, values, expert, parts["weight_packed"])
        _write(backend, scales, expert, scale.astype(scale_dtype, copy=False))
        tensor.release()
    return values, scales


def _upload_plain(backend: "KernelBackend", stored: Sequence[StoredTensor], _: "np.dtype[Any]") -> Part:
    values = backend.empty((len(stored), *stored[0].shape))
    for expert, tensor in enumerate(stored):
        matrix = tensor.read(backend.real)
        check_finite(tensor, matrix)
        _write(backend, values, expert, matrix)
        tensor.release()
    return values, None


def _write(backend: "KernelBackend", array: DeviceArray, expert: int, host: Any) -> None:
    size = int(np.prod(array.shape[1:]))
    backend.device.write(array.view(array.shape[1:], expert * size), host)

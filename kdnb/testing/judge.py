"""Comparing what a kernel backend computes with what kdnb.reference means."""

import hashlib
from typing import Any

import numpy as np

from kdnb.arrays import Bool, Float64, Floats, HostArray
from kdnb.backends.device import DeviceArray
from kdnb.backends.kernel_backend import FLOAT32, KernelBackend
from kdnb.testing.base import CheckFailed
from kdnb.tree import DraftTree

FLOAT32_ERROR = 1e-5  # of the root mean square of all values: sums of a few thousand products
BF16_ROUNDING = 2.0**-8  # of a value: half a unit in the last of its eight bits
# Of the root mean square: what a result can be off because values on the way to it were rounded to bf16.
# Each is off by 2**-8 at most, and they are independent: all together stay within a few times that.
BF16_ON_THE_WAY = 2.0**-5


class Judge:
    """Makes inputs, compares results, and keeps a digest of every result's bits.

    Args:
        backend: The backend that is judged.
        seed: Of all inputs.
        wide: Whether to ask for the shapes of real models too, which take a GPU or patience.
    """

    def __init__(self, backend: KernelBackend, seed: int, wide: bool) -> None:
        self.backend, self.wide = backend, wide
        self.rng = np.random.default_rng(seed)
        self.num_results = 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of all results so far: two runs that give the same have computed the same bits."""
        return self._digest.hexdigest()

    def floats(self, *shape: int, scale: float = 1.0) -> tuple[DeviceArray, Float64]:
        """Random values in the backend's dtype, and what they are."""
        return self.real(self.rng.standard_normal(shape) * scale)

    def real(self, values: HostArray) -> tuple[DeviceArray, Float64]:
        """Given values in the backend's dtype, and what is left of them there."""
        held = values.astype(self.backend.real)
        return self.backend.put(held), held.astype(np.float64)

    def vector(self, size: int, scale: float = 1.0) -> tuple[DeviceArray, Float64]:
        """A norm's weight or a bias: float32 in every backend."""
        held = (1 + self.rng.standard_normal(size) * scale).astype(np.float32)
        return self.backend.put(held), held.astype(np.float64)

    def visible(self, num_nodes: int) -> Bool:
        """Of a random tree."""
        parents = [-1, *(int(self.rng.integers(max(0, node - 9), node)) for node in range(1, num_nodes))]
        return DraftTree.from_parents(np.arange(num_nodes), np.array(parents)).visible

    def exact(self, case: str, got: Any, want: HostArray) -> None:
        """Integers and copies: equal in every value."""
        got = self._host(case, got, want)
        self._compare(case, got, want, np.zeros(want.shape))

    def close(self, case: str, got: Any, want: Floats, *, on_the_way: bool = False, terms: int = 1) -> None:
        """Floats: to the rounding of the dtype they are stored in.

        Args:
            case: The op and its shape, for the message.
            got: What the backend computed.
            want: The float64 value.
            on_the_way: Whether the op stores values of its own before the result.
            terms: Of the longest sum; its rounding grows with the root of it.
        """
        in_float32 = getattr(got, "dtype", FLOAT32) == FLOAT32
        got = self._host(case, got, want)
        finite = want[np.isfinite(want)]
        rms = float(np.sqrt(np.square(finite).mean())) if finite.size else 0.0
        allowed = FLOAT32_ERROR * max(1.0, terms / 1024) ** 0.5 * (rms + np.abs(want))
        if not in_float32:
            allowed += BF16_ROUNDING * np.abs(want)
        if on_the_way and self.backend.real != FLOAT32:
            allowed += BF16_ON_THE_WAY * rms
        self._compare(case, got, want, allowed)

    def _host(self, case: str, got: Any, want: HostArray) -> HostArray:
        host: HostArray = self.backend.device.read(got) if isinstance(got, DeviceArray) else np.asarray(got)
        self._digest.update(host.tobytes())
        self.num_results += 1
        if host.shape != want.shape:
            raise CheckFailed(f"{case} has shape {list(host.shape)}, expected {list(want.shape)}.")
        return host

    def _compare(self, case: str, got: HostArray, want: HostArray, allowed: Float64) -> None:
        if np.issubdtype(got.dtype, np.integer):
            wrong = got != want
        else:
            got, want = got.astype(np.float64), want.astype(np.float64)
            with np.errstate(invalid="ignore"):  # infinities and NaN agree with themselves
                near = np.abs(got - want) <= allowed
            wrong = ~(near | (got == want) | (np.isnan(got) & np.isnan(want)))
        if wrong.any():
            at = tuple(int(axis[0]) for axis in np.nonzero(wrong))
            limit = float(allowed[at])
            raise CheckFailed(
                f"{case} is wrong in {int(wrong.sum())} of {wrong.size} values, first at {list(at)}: "
                f"expected {want[at]}, got {got[at]}" + (f" (allowed {limit:.2g})." if limit else ".")
            )

"""A backend whose arrays show nothing but their shape: proof that nothing leaks above the seam."""

from typing import Any

import numpy as np

from kdnb.backends.numpy_backend import NumpyBackend

HOST_RESULTS = {"download", "cache_rows", "top_k_log_probs", "row_by_row"}


class OpaqueArray:
    """Holds a value that only the backend may look at."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    def __repr__(self) -> str:
        return f"OpaqueArray({list(self.shape)})"


class OpaqueWeight:
    """A weight handle without any attribute."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value


class OpaqueBackend:
    """Wraps every array and handle of the numpy backend on its way out and unwraps it on its way in."""

    name = "opaque"
    dtype = "float32"

    def __init__(self) -> None:
        self._inner = NumpyBackend()
        self.calls: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.add(name)
            result = op(
                *[_unwrap(arg) for arg in args],
                **{key: _unwrap(value) for key, value in kwargs.items()},
            )
            return result if name in HOST_RESULTS else _wrap(result)

        return call

    def __repr__(self) -> str:
        return "OpaqueBackend()"


def _unwrap(x: Any) -> Any:
    if isinstance(x, OpaqueArray | OpaqueWeight):
        return x._value
    if type(x) in (list, tuple):
        return type(x)(_unwrap(item) for item in x)
    return x


def _wrap(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return OpaqueArray(x)
    if type(x) is tuple:
        return tuple(_wrap(item) for item in x)
    if hasattr(x, "topk_index"):  # Routing
        return tuple(_wrap(item) for item in x)
    return x if x is None else OpaqueWeight(x)

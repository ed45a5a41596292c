"""Where the ops run. `get_backend` makes a backend by name; the rest of kdnb takes it as an argument."""

from kdnb.backends.base import Backend
from kdnb.backends.device import Device
from kdnb.errors import ConfigError

__all__ = ["BACKENDS", "Backend", "get_backend"]

BACKENDS = ("numpy", "cuda", "emulated")


def get_backend(name: str | Backend, **options: object) -> Backend:
    """Return a backend.

    Args:
        name: "numpy", "cuda" or "emulated", or a Backend object, which is returned as it is.
        options: Keyword arguments of the backend's class: `dtype`, `deterministic`,
            `expert_cache_bytes` for numpy.

    Returns:
        The backend.

    Raises:
        ConfigError: if no backend has this name, or an object comes with options.
        BackendUnavailable: if it cannot run here.
    """
    if not isinstance(name, str):
        if options:
            raise ConfigError(
                f"backend is already an object ({name!r}); give {', '.join(options)} to its own class."
            )
        return name
    if name == "numpy":
        from kdnb.backends.numpy_backend import NumpyBackend

        return NumpyBackend(**options)  # type: ignore[arg-type]
    if name in BACKENDS:
        from kdnb.backends.kernel_backend import KernelBackend

        if options.pop("expert_cache_bytes", None) is not None:
            raise ConfigError(
                f'expert_cache_bytes is for the numpy backend; "{name}" holds all weights on its device.'
            )
        return KernelBackend(_device(name), **options)  # type: ignore[arg-type]
    raise ConfigError(f'backend "{name}" is unknown; use one of {", ".join(BACKENDS)}.')


def _device(name: str) -> Device:
    if name == "emulated":
        from kdnb.backends.emulated_device import EmulatedDevice

        return EmulatedDevice()
    from kdnb.backends.cuda_device import CudaDevice

    return CudaDevice()

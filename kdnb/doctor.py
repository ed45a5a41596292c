"""What this machine can run, and what to install for the rest."""

import ctypes
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

PACKAGES = (
    ("numpy", "base"),
    ("ml_dtypes", "base"),
    ("safetensors", "base"),
    ("tokenizers", "base"),
    ("tiktoken", "base"),
    ("matplotlib", "base"),
    ("ipywidgets", "base"),
    ("anywidget", "base"),
    ("tqdm", "base"),
    ("platformdirs", "base"),
    ("click", "base"),
    ("jupyterlab", "lab"),
    ("ipykernel", "lab"),
    ("jupyterlab_widgets", "base"),
    ("nbval", "test"),
    ("cuda-python", "cu13"),
    ("cuda-core", "cu13"),
    ("nvidia-cuda-nvrtc", "cu13"),
    ("nvidia-cuda-nvrtc-cu12", "cu12"),
    ("nvmath-python", "cu13"),
    ("torch", "reference"),
    ("transformers", "reference"),
)
CUDA_SUCCESS = 0
DRIVER_WORKS = "the NVIDIA driver works"


@dataclass(frozen=True)
class Ability:
    """One thing kdnb can do or not do here.

    Args:
        name: What.
        works: Whether it can be done now.
        reason: What was found, or what is missing.
        mend: The command that brings it, or "" where none is needed or none would help.
    """

    name: str
    works: bool
    reason: str
    mend: str = ""


def examine() -> dict[str, Any]:
    """Look at the machine.

    Returns:
        {"python", "platform", "cores", "blas", "packages": {name: version or None}, "abilities": [...]}.
        Nothing is loaded that could hang without a driver: the driver is asked by cuInit alone.
    """
    packages = {name: _version(name) for name, _ in PACKAGES}
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "blas": _blas(),
        "packages": packages,
        "abilities": [asdict(ability) for ability in _abilities(packages)],
    }


def install_line(extra: str = "") -> str:
    """The command that installs kdnb with an extra, from where this copy came from."""
    wanted = f"[{extra}]" if extra else ""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    clone = Path(__file__).parent.parent
    if (clone / "pyproject.toml").is_file():
        return f'{pip} -e "{clone}{wanted}"'
    source = _installed_from()
    if source is not None:
        return f'{pip} "{source}{wanted}"'
    return f'{pip} ".{wanted}"   (in a clone of kdnb)'


def _installed_from() -> Path | None:
    """The folder that pip installed kdnb from, if it is still there."""
    try:
        record = importlib.metadata.distribution("kdnb").read_text("direct_url.json")
        url = urlsplit(json.loads(record or "{}").get("url", ""))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    folder = Path(url2pathname(url.path))
    return folder if url.scheme == "file" and (folder / "pyproject.toml").is_file() else None


def _abilities(packages: dict[str, str | None]) -> list[Ability]:
    return [
        _numpy(packages),
        _lab(packages),
        _emulated(),
        _compile_kernels(),
        _cuda(packages),
        Ability(
            "comparison with transformers",
            packages["transformers"] is not None and packages["torch"] is not None,
            "kdnb bench runs it beside kdnb" if packages["transformers"] else "transformers is not installed",
            "" if packages["transformers"] else install_line("reference"),
        ),
    ]


def _numpy(packages: dict[str, str | None]) -> Ability:
    """Run the shipped model: only that tells whether it works."""
    name = "numpy backend"
    absent = [package for package, extra in PACKAGES if extra == "base" and packages[package] is None]
    also = f"; not installed: {', '.join(absent)}" if absent else ""
    mend = install_line() if absent else ""
    try:
        import numpy as np

        from kdnb.model import load_target

        finite = bool(np.isfinite(load_target("tiny").logits([1, 2, 3])).all())
    except Exception as error:  # whatever is broken here is the answer
        return Ability(name, False, f"{type(error).__name__}: {error}{also}", mend or install_line())
    if not finite:
        return Ability(name, False, f"the shipped model's logits are not finite: BLAS is broken{also}", mend)
    return Ability(name, True, f"the shipped model runs{also}", mend)


def _lab(packages: dict[str, str | None]) -> Ability:
    if packages["jupyterlab"] is None:
        return Ability("notebooks (kdnb lab)", False, "jupyterlab is not installed", install_line("lab"))
    extension = os.path.join(sys.prefix, "share", "jupyter", "labextensions", "anywidget")
    if not os.path.isdir(extension):
        return Ability(
            "notebooks (kdnb lab)",
            False,
            "anywidget's JupyterLab extension is not in this environment",
            f"{shlex.quote(sys.executable)} -m pip install --force-reinstall anywidget",
        )
    return Ability("notebooks (kdnb lab)", True, f"jupyterlab {packages['jupyterlab']}")


def _compile_kernels() -> Ability:
    """Compile a kernel: that needs NVRTC, but no GPU."""
    name = "compile CUDA kernels"
    try:
        from kdnb.kernels.nvrtc import compile_cubin, nvrtc_version, supported_archs
        from kdnb.kernels.source import KernelSource

        version = ".".join(map(str, nvrtc_version()))
        compile_cubin(KernelSource.of("embed", {"REAL_IS_BF16": False}), "sm_90a")
        archs = ", ".join(map(str, supported_archs()))
    except Exception as error:  # whatever is missing is the answer
        return Ability(name, False, _one_line(error), install_line("kernels"))
    return Ability(name, True, f"NVRTC {version}, for compute capability {archs}")


def _emulated() -> Ability:
    """Run a kernel on the CPU: only that tells whether compiler and loader work."""
    name = "emulated backend"
    try:
        from kdnb.kernels.host import find_compiler

        compiler = " ".join(find_compiler())
        _run_a_kernel("emulated")
    except Exception as error:  # as above
        return Ability(name, False, _one_line(error), install_line("emulated"))
    return Ability(name, True, f"{compiler} compiles and runs kernels on this CPU")


def _cuda(packages: dict[str, str | None]) -> Ability:
    """Run a kernel on the GPU, after the driver was asked by cuInit alone."""
    name = "cuda backend"
    mend = "" if packages["cuda-core"] else install_line("cu13")
    driver = _driver()
    if driver != DRIVER_WORKS:
        return Ability(name, False, driver, mend)
    try:
        gpu = _run_a_kernel("cuda")
        from kdnb.backends.blas import Blas

        blas = "cuBLAS" if Blas.is_installed() else "no cuBLAS (kdnb's own products are used)"
    except Exception as error:  # as above
        return Ability(name, False, _one_line(error), mend or install_line("cu13"))
    return Ability(name, True, f"{gpu} runs kernels; {blas}")


def _run_a_kernel(backend: str) -> str:
    import numpy as np

    from kdnb.backends import get_backend
    from kdnb.backends.kernel_backend import KernelBackend

    kernels = get_backend(backend)
    assert isinstance(kernels, KernelBackend)
    ones = kernels.upload(np.ones((2, 3), dtype=np.float32))
    if not (kernels.download(kernels.add(ones, ones)) == 2).all():
        raise RuntimeError("a kernel computes 1 + 1 wrongly")
    return repr(kernels.device)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _driver() -> str:
    """Ask the NVIDIA driver, by cuInit alone."""
    names = ("nvcuda.dll",) if os.name == "nt" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        status = int(library.cuInit(0))
        if status == CUDA_SUCCESS:
            return DRIVER_WORKS
        return f"the NVIDIA driver is there but cuInit fails with error {status}"
    return "no NVIDIA driver"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    blas = (config or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()

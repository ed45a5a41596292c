"""What this machine can run, and what to install for the rest."""

import ctypes
import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
COMPILERS = ("g++", "clang++", "c++", "cl")


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
    clone = Path(__file__).parent.parent
    wanted = f"[{extra}]" if extra else ""
    if (clone / "pyproject.toml").is_file():
        return f'{shlex.quote(sys.executable)} -m pip install -e "{clone}{wanted}"'
    return f'{shlex.quote(sys.executable)} -m pip install "kdnb{wanted}"'


def _abilities(packages: dict[str, str | None]) -> list[Ability]:
    return [
        _numpy(packages),
        _lab(packages),
        _compiler(),
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


def _compiler() -> Ability:
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None and find_spec("ziglang") is not None:
        found = "ziglang"
    reason = "this version of kdnb has no emulated backend yet"
    return Ability("emulated backend", False, f"{reason}; C++ compiler: {found or 'none'}")


def _cuda(packages: dict[str, str | None]) -> Ability:
    what = _driver()
    nvrtc = packages["nvidia-cuda-nvrtc"] or packages["nvidia-cuda-nvrtc-cu12"]
    found = f"{what}; NVRTC {nvrtc or 'not installed'}"
    reason = f"this version of kdnb has no cuda backend yet ({found})"
    return Ability("cuda backend", False, reason)


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
            return "NVIDIA driver works"
        return f"NVIDIA driver is there but cuInit fails with error {status}"
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

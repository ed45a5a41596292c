"""Compiling for a CPU: the same sources under a host C++ compiler; cuda_src/emulator.h plays the GPU."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kdnb.errors import BackendUnavailable, KernelError
from kdnb.kernels.disk_cache import DiskCache
from kdnb.kernels.source import CUDA_SRC, KernelSource

ABI = 1
# contraction would make fused products of a kernel's sums; a GPU does so too, but not for the same ones
FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", "-w")
SANITIZERS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
)


def load_library(source: KernelSource, cache: DiskCache, *, sanitize: bool = False) -> ctypes.CDLL:
    """Compile a source for this machine's CPU and load it.

    Args:
        source: What to compile.
        cache: Where built libraries are kept.
        sanitize: Build with AddressSanitizer and UndefinedBehaviorSanitizer; the process must run with
            AddressSanitizer's library preloaded.

    Raises:
        BackendUnavailable: if there is no C++ compiler.
        KernelError: if the source does not compile.
    """
    compiler = find_compiler()
    flags = (*FLAGS, *(SANITIZERS if sanitize else ()))
    shim = (CUDA_SRC / "emulator.h").read_text(encoding="utf-8")
    exports = "".join(f"KDNB_EXPORT({entry})\n" for entry in source.entries)
    text = f'#line 1 "emulator.h"\n{shim}\n{source.text}\n{exports}'
    identity = "\0".join([text, *flags, *compiler, _version_of(compiler)])
    key = f"{source.name}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}-{ABI}"
    path, _ = cache.path(key, ".so", lambda: _build(source.name, text, compiler, flags))
    return ctypes.CDLL(str(path))


def find_compiler() -> tuple[str, ...]:
    """The command of a host C++ compiler.

    Raises:
        BackendUnavailable: if there is none.
    """
    asked = os.environ.get("CXX")
    for name in (asked, "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return (name,)
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "c++")
    raise BackendUnavailable(
        "the emulated backend compiles kernels with a C++ compiler, and there is no g++ or clang++ here; "
        "install one, or: pip install ziglang (the extra kdnb[emulated])."
    )


@functools.cache
def _version_of(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout


def _build(
    name: str, text: str, compiler: tuple[str, ...], flags: tuple[str, ...]
) -> tuple[bytes, dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="kdnb-") as folder:
        code, library = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
        code.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [*compiler, *flags, str(code), "-o", str(library)], capture_output=True, text=True
        )
        if done.returncode:
            raise KernelError(f"{name}.cu does not compile for the CPU:\n{done.stderr.strip()}")
        return library.read_bytes(), {"log": done.stderr}

"""Compiling for a GPU: NVRTC through cuda-python, to machine code for one architecture."""

import hashlib
import io
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kdnb.errors import BackendUnavailable, KernelError
from kdnb.kernels.disk_cache import DiskCache
from kdnb.kernels.source import KernelSource

OPTIONS = {"std": "c++17", "ptxas_options": ["-v"]}  # -v: registers, shared memory and spills in the log
# serialised wgmma, a dropped setmaxnreg: the kernel would run, at a fraction of its speed
FATAL_NOTICES = ("C7504", "C7505", "C7520")
_PLACE = re.compile(r"^([\w.]+)\((\d+)\): (?:error|warning)", re.MULTILINE)
_PROPERTIES = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads.*?Used (\d+) registers(?:, used \d+ barriers)?"
    r"(?:, (\d+) bytes cumulative stack size)?(?:, (\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers per thread, bytes of static shared memory, stack and spills."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source.

    Args:
        source: What was compiled.
        arch: For which architecture, "sm_90a" or the like.
        code: The CUBIN.
        log: The compiler's notes.
    """

    source: KernelSource
    arch: str
    code: bytes
    log: str

    def __repr__(self) -> str:
        return f"Cubin({self.source.name!r}, {self.arch}, {len(self.code)} bytes)"

    @cached_property
    def resources(self) -> dict[str, Resources]:
        """Per kernel of the source, from the compiler's own report."""
        return {
            name: Resources(int(registers), int(shared or 0), int(stack), int(stores) + int(loads))
            for name, stack, stores, loads, registers, _, shared in _PROPERTIES.findall(self.log)
        }

    def report(self) -> str:
        """Registers, shared memory and spills, one line per kernel."""
        lines = [f"{self.source.name} for {self.arch}, {len(self.code):,} bytes"]
        for name, r in self.resources.items():
            lines.append(
                f"  {name}: {r.registers} registers, {r.shared_bytes:,} B static shared memory, "
                f"{r.stack_bytes} B stack, {r.spill_bytes} B spilled"
            )
        return "\n".join(lines)

    def ptx(self) -> str:
        """The intermediate code, compiled again."""
        return _ptx(self.source, self.arch)

    def sass(self) -> str:
        """The disassembly.

        Raises:
            BackendUnavailable: if cuobjdump is not installed.
        """
        return disassemble(self.code)


def compile_cubin(source: KernelSource, arch: str, cache: DiskCache | None = None) -> Cubin:
    """Compile a source; no GPU and no driver are needed.

    Args:
        source: What to compile.
        arch: "sm_80", "sm_90a", "sm_100a", "sm_120a" or the like.
        cache: Where built code is kept; None is the user's cache.

    Raises:
        BackendUnavailable: if cuda-python or NVRTC is not installed, or NVRTC does not know the arch.
        KernelError: if the source does not compile; the message shows the lines.
    """
    identity = "\0".join([source.digest, arch, repr(nvrtc_version()), repr(sorted(OPTIONS.items()))])
    key = f"{source.name}-{arch}-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    code, notes = (cache or DiskCache()).get(key, ".cubin", lambda: _compile(source, arch))
    return Cubin(source, arch, code, notes["log"])


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of the NVRTC that is installed.

    Raises:
        BackendUnavailable: if there is none.
    """
    try:
        from cuda.bindings import nvrtc

        error, major, minor = nvrtc.nvrtcVersion()
    except Exception as problem:  # a missing package or a missing library, each with its own exception
        raise BackendUnavailable(
            f"kernels cannot be compiled here: {_first_line(problem)}. Install NVRTC: "
            "pip install cuda-python nvidia-cuda-nvrtc (the extra kdnb[kernels])."
        ) from None
    if int(error):
        raise BackendUnavailable(
            f"NVRTC gives error {int(error)} for its version; reinstall nvidia-cuda-nvrtc."
        )
    return int(major), int(minor)


def supported_archs() -> tuple[int, ...]:
    """Compute capabilities that the installed NVRTC compiles for, as 80, 90, ..."""
    from cuda.bindings import nvrtc

    _, count = nvrtc.nvrtcGetNumSupportedArchs()
    _, archs = nvrtc.nvrtcGetSupportedArchs()
    return tuple(sorted(int(arch) for arch in archs[:count]))


def _compile(source: KernelSource, arch: str) -> tuple[bytes, dict[str, Any]]:
    from cuda.core import Program, ProgramOptions

    capability = int(re.sub(r"\D", "", arch) or 0)
    if capability not in supported_archs():
        known = ", ".join(map(str, supported_archs()))
        raise BackendUnavailable(
            f"NVRTC {'.'.join(map(str, nvrtc_version()))} does not compile for {arch}; it knows compute "
            f"capability {known}. Install another version of nvidia-cuda-nvrtc."
        )
    options = ProgramOptions(name=f"{source.name}.cu", arch=arch, **OPTIONS)
    log = io.StringIO()
    try:
        code = Program(source.text, "c++", options).compile("cubin", logs=log).code
    except Exception as problem:
        raise KernelError(_explain(source, str(problem))) from None
    notices = [code for code in FATAL_NOTICES if code in log.getvalue()]
    if notices:
        raise KernelError(f"{source.name}.cu for {arch}: the compiler reports {notices}:\n{log.getvalue()}")
    return bytes(code), {"log": log.getvalue().replace("\0", "")}


def _ptx(source: KernelSource, arch: str) -> str:
    """By NVRTC itself: cuda.core asks the driver for its version when it makes PTX."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.text.encode(), f"{source.name}.cu".encode(), 0, [], [])
    options = [f"--gpu-architecture={arch.replace('sm_', 'compute_')}".encode(), b"--std=c++17"]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(error):
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise KernelError(_explain(source, log.decode().strip("\0 ")))
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return str(text.decode()).strip("\0 ")


def _explain(source: KernelSource, problem: str) -> str:
    """The compiler's log, then the lines it speaks of."""
    out = [f"{source.name}.cu does not compile:", problem.strip()]
    for file, number in dict.fromkeys(_PLACE.findall(problem)):
        try:
            lines = source.lines(file).splitlines()
        except KernelError:
            continue  # the preamble, or a header of the compiler
        at = int(number)
        out.append(f"{file}:")
        for shown in range(max(1, at - 2), min(len(lines), at + 2) + 1):
            out.append(f"{'>' if shown == at else ' '} {shown:4d} | {lines[shown - 1]}")
    return "\n".join(out)


def disassemble(code: bytes) -> str:
    """SASS of a CUBIN, by the cuobjdump of the nvidia-cuda-cuobjdump wheel or of a CUDA toolkit.

    Raises:
        BackendUnavailable: if there is none.
    """
    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("cuobjdump")
    if tool is None:
        raise BackendUnavailable(
            "SASS needs cuobjdump, which is not installed: pip install nvidia-cuda-cuobjdump "
            "nvidia-cuda-nvdisasm."
        )
    disassembler = find_nvidia_binary_utility("nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        search = os.pathsep.join(
            [str(Path(p).parent) for p in (disassembler, tool) if p] + [os.environ["PATH"]]
        )
        done = subprocess.run(
            [tool, "-sass", str(path)], capture_output=True, text=True, env={**os.environ, "PATH": search}
        )
    if done.returncode:
        raise BackendUnavailable(f"cuobjdump failed: {done.stderr.strip()}")
    return done.stdout


def _first_line(problem: BaseException) -> str:
    return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__

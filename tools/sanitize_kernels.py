"""Run the op checks on the emulated backend under AddressSanitizer and UndefinedBehaviorSanitizer.

    python tools/sanitize_kernels.py [OP ...]

First a kernel that reads behind an array on purpose: it must be caught, or the rest would prove nothing.
"""

import os
import shutil
import subprocess
import sys

CHECK = """
import sys
from kdnb.backends.emulated_device import EmulatedDevice
from kdnb.backends.kernel_backend import KernelBackend
from kdnb.testing.ops import check_ops
check_ops(KernelBackend(EmulatedDevice(sanitize=True)), only=sys.argv[1:] or None, say=print)
"""
READS_BEHIND = """
from kdnb.backends.emulated_device import EmulatedDevice
from kdnb.backends.kernel_backend import INT32, KernelBackend
body = '''#include "common.cuh"
extern "C" __global__ void probe(const int* x, int* out, int size) {
    out[threadIdx.x] = x[size + 300 + threadIdx.x];
}
'''
backend = KernelBackend(EmulatedDevice(sanitize=True, bodies={"probe": body}))
x, out = backend.zeros_of((32,), INT32), backend.zeros_of((32,), INT32)
backend.launch("probe", "probe", (1,), [x, out, 32], block=32)
"""


def main() -> int:
    """Status 0 if the deliberate error was caught and nothing else was."""
    libraries = [path for name in ("libasan.so", "libubsan.so") if (path := library(name))]
    if len(libraries) < 2:
        print("g++ with libasan and libubsan is needed; Debian has them in libgcc-*-dev")
        return 2
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "CXX": "g++",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    caught = subprocess.run(
        [sys.executable, "-c", READS_BEHIND], env=environment, capture_output=True, text=True
    )
    if "heap-buffer-overflow" not in caught.stderr or "probe" not in caught.stderr:
        print(f"a read behind an array was not caught:\n{caught.stderr[-2000:]}")
        return 1
    print("a read behind an array is caught", flush=True)
    return subprocess.run([sys.executable, "-c", CHECK, *sys.argv[1:]], env=environment).returncode


def library(name: str) -> str | None:
    """Where g++ keeps a library, or None."""
    if shutil.which("g++") is None:
        return None
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) and os.path.exists(found) else None


if __name__ == "__main__":
    sys.exit(main())

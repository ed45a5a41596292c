"""Where CUDA cannot run it says so at once, and again, instead of hanging."""

import subprocess
import sys

import pytest

from kdnb.backends import cuda_device
from kdnb.errors import BackendUnavailable

TWICE = """
import kdnb
for _ in range(3):
    try:
        kdnb.load_target("golden", backend="cuda")
    except kdnb.errors.BackendUnavailable as error:
        print(error)
"""


def has_gpu():
    try:
        cuda_device.probe()
    except BackendUnavailable:
        return False
    return True


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_each_time_and_within_seconds():
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert len(set(lines)) == 1
    assert "driver" in lines[0]
    assert 'backend="emulated"' in lines[0]


@pytest.mark.parametrize(
    ("status", "count", "words"),
    [(100, 0, "cuInit gives CUDA_ERROR_NO_DEVICE"), (0, 0, "sees no GPU")],
)
def test_a_driver_without_a_gpu(monkeypatch, status, count, words):
    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuInit", lambda flags: (driver.CUresult(status),))
    monkeypatch.setattr(driver, "cuDeviceGetCount", lambda: (driver.CUresult(0), count))
    with pytest.raises(BackendUnavailable, match=words):
        cuda_device.CudaDevice()


def test_without_cuda_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendUnavailable, match=r"needs cuda-python.*pip install"):
        cuda_device.probe()

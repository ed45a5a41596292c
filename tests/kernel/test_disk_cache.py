"""The cache of built kernels: many writers, damaged entries, folders that cannot be written."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from kdnb.kernels import disk_cache
from kdnb.kernels.disk_cache import DiskCache, default_folder
from kdnb.kernels.nvrtc import compile_cubin
from kdnb.kernels.source import KernelSource

PAYLOAD = bytes(range(256)) * 7
COLD = """
import sys
from kdnb.kernels.nvrtc import compile_cubin
from kdnb.testing.specialisations import specialised
for name in ("embed", "tree_accept", "swiglu"):
    cubin = compile_cubin(specialised(name), "sm_90a")
    print(name, len(cubin.code), cubin.resources[name].registers)
"""


def counted():
    calls = []

    def build():
        calls.append(1)
        return PAYLOAD, {"log": "used 3"}

    return calls, build


def test_an_entry_is_built_once(tmp_path):
    calls, build = counted()
    for _ in range(3):
        assert DiskCache(tmp_path).get("key", ".bin", build) == (PAYLOAD, {"log": "used 3"})
    assert len(calls) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["key.bin"]  # nothing half-written stays


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:100] + b"?" + b[101:], lambda b: b + b"x"],
    ids=["cut", "emptied", "flipped", "longer"],
)
def test_a_damaged_entry_is_built_again(tmp_path, damage):
    calls, build = counted()
    cache = DiskCache(tmp_path)
    cache.get("key", ".bin", build)
    path = tmp_path / "key.bin"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("key", ".bin", build)[0] == PAYLOAD
    assert cache.get("key", ".bin", build)[0] == PAYLOAD
    assert len(calls) == 2


def test_eight_processes_that_start_cold_together(tmp_path):
    environment = {**os.environ, "KDNB_CACHE_DIR": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", COLD], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    told = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 8
    assert len(told) == 1
    assert next(iter(told)).startswith("embed ")
    assert len(list(tmp_path.iterdir())) == 3
    _, build = counted()
    for path in tmp_path.iterdir():  # whole and valid: not built again
        assert DiskCache(tmp_path).get(path.stem, path.suffix, build)[0] != PAYLOAD


def test_a_folder_that_cannot_be_written_costs_a_warning_once(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    calls, build = counted()
    cache = DiskCache(blocked / "kernels")
    with pytest.warns(UserWarning, match="cannot be kept in .*KDNB_CACHE_DIR"):
        assert cache.get("key", ".bin", build)[0] == PAYLOAD
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path, _ = cache.path("key", ".bin", build)
    assert path.read_bytes() == PAYLOAD
    assert len(calls) == 2


def test_where_it_lives(monkeypatch, tmp_path):
    monkeypatch.setenv("KDNB_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("KDNB_CACHE_DIR")
    assert default_folder().name == "kernels"
    assert "site-packages" not in default_folder().parts


def test_every_part_of_a_source_changes_its_key(tmp_path):
    body = '#include "common.cuh"\nextern "C" __global__ void embed(int* x, int n) { x[0] = n; }\n'
    constants = {"REAL_IS_BF16": False}
    sources = [
        KernelSource.of("embed", constants, body),
        KernelSource.of("embed", constants, body + "// another\n"),
        KernelSource.of("embed", {"REAL_IS_BF16": True}, body),
    ]
    cache = DiskCache(tmp_path)
    for source in sources:
        compile_cubin(source, "sm_90a", cache)
    compile_cubin(sources[0], "sm_80", cache)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_changed_header_changes_the_key(monkeypatch, tmp_path):
    from kdnb.kernels import source as module

    for path in module.CUDA_SRC.iterdir():
        if path.suffix in (".cu", ".cuh"):
            Path(tmp_path / path.name).write_bytes(path.read_bytes())
    before = KernelSource.of("embed", {}).digest
    monkeypatch.setattr(module, "CUDA_SRC", tmp_path)
    assert KernelSource.of("embed", {}).digest == before
    with (tmp_path / "common.cuh").open("a") as file:
        file.write("// more\n")
    assert KernelSource.of("embed", {}).digest != before
    assert KernelSource.of("rope", {}).digest != KernelSource.of("embed", {}).digest


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def build():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        DiskCache(tmp_path / "cache").get("key", ".so", build)
    assert not (tmp_path / "cache").exists()


def test_a_damaged_entry_that_cannot_be_replaced_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "key.so").write_bytes(b"damaged")

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(disk_cache.Path, "unlink", refuse)
        patched.setattr(disk_cache.tempfile, "mkstemp", refuse)
        with pytest.warns(UserWarning, match="Permission denied"):
            path, _ = DiskCache(tmp_path).path("key", ".so", counted()[1])
    assert path.read_bytes() == PAYLOAD

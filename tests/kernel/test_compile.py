"""Every kernel compiles for every architecture, without warnings and without taking more than it did.

`python tests/kernel/test_compile.py` writes the table of the installed NVRTC anew, after a change that is
meant to take more.
"""

import json
import os
from pathlib import Path

import pytest

from kdnb.backends.device_tree import tree_build_shape
from kdnb.errors import BackendUnavailable, KernelError
from kdnb.kernels.disk_cache import DiskCache
from kdnb.kernels.nvrtc import compile_cubin, nvrtc_version, supported_archs
from kdnb.kernels.source import CUDA_SRC, KernelSource
from kdnb.testing.specialisations import ARCHS, SPECIALISATIONS, specialised

TABLE = Path(__file__).parents[1] / "data" / "resources.json"  # by version of NVRTC, kernel, dtype and arch
VERSION = ".".join(map(str, nvrtc_version()))


def taken(name, real_is_bf16, arch, cache=None):
    """Registers, static shared memory and spills of each kernel in a file."""
    cubin = compile_cubin(specialised(name, real_is_bf16), arch, cache)
    return cubin, {
        entry: {"registers": r.registers, "shared": r.shared_bytes, "spilled": r.spill_bytes}
        for entry, r in cubin.resources.items()
    }


def test_the_table_has_every_kernel():
    assert sorted(SPECIALISATIONS) == sorted(path.stem for path in CUDA_SRC.glob("*.cu"))
    for table in json.loads(TABLE.read_text()).values():
        assert sorted(table) == sorted(SPECIALISATIONS)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", sorted(SPECIALISATIONS))
def test_compiles_without_warnings_and_within_the_table(name, arch):
    tables = json.loads(TABLE.read_text())
    known_version = VERSION in tables
    table = tables[VERSION if known_version else max(tables)][name]
    for dtype in ("float32", "bfloat16"):
        cubin, found = taken(name, dtype == "bfloat16", arch)
        assert "warning" not in cubin.log.lower(), cubin.log
        assert sorted(found) == sorted(cubin.source.entries)
        for entry, resources in found.items():
            known = table[f"{dtype} {arch}"][entry]
            place = (entry, arch, dtype, VERSION)
            if known_version:
                assert resources == known, place
            else:  # a newer compiler may divide registers a little otherwise
                assert resources["spilled"] <= known["spilled"] + 64, place
                assert resources["registers"] <= known["registers"] + 32, place


@pytest.mark.parametrize("node_budget", [256, 512, 1024])
def test_the_tree_build_fits_into_the_shared_memory_of_every_gpu(node_budget):
    constants, _, dynamic = tree_build_shape(node_budget, 15, node_budget)
    source = KernelSource.of("tree_build", {**constants, "REAL_IS_BF16": False})
    static = compile_cubin(source, "sm_120a").resources["tree_build"].shared_bytes
    assert static + dynamic <= 99 << 10  # of sm_86, sm_89 and sm_120


def test_an_error_shows_file_line_and_source():
    body = '#include "common.cuh"\nextern "C" __global__ void embed(int* x) {\n    x[0] = absent;\n}\n'
    with pytest.raises(KernelError) as caught:
        compile_cubin(KernelSource.of("embed", {"REAL_IS_BF16": False}, body), "sm_90a")
    message = str(caught.value)
    assert message.startswith("embed.cu does not compile:")
    assert 'embed.cu(3): error: identifier "absent" is undefined' in message
    assert ">    3 |     x[0] = absent;" in message
    assert "     2 | extern" in message


def test_an_error_in_a_header_shows_the_header():
    body = '#include "common.cuh"\nusing Wrong = RealType<REAL_IS_BF16>::nothing;\n'
    source = KernelSource.of("embed", {"REAL_IS_BF16": False}, body)
    with pytest.raises(KernelError, match=r"embed\.cu\(2\): error"):
        compile_cubin(source, "sm_90a")
    without = KernelSource.of("embed", {})
    with pytest.raises(KernelError, match=r"common\.cuh\(\d+\): error: identifier \"REAL_IS_BF16\""):
        compile_cubin(without, "sm_90a")


def test_an_unknown_architecture_is_refused_with_the_list():
    known = ", ".join(map(str, supported_archs()))
    with pytest.raises(
        BackendUnavailable, match=f"does not compile for sm_35; it knows compute capability {known}"
    ):
        compile_cubin(specialised("embed"), "sm_35")


def test_source_ptx_sass_and_report_can_be_read():
    cubin = compile_cubin(specialised("tree_accept"), "sm_90a")
    assert "constexpr int NODE_BUDGET = 256;" in cubin.source.text
    assert ".target sm_90a" in cubin.ptx()
    assert ".visible .entry tree_accept" in cubin.ptx()
    assert "Function : tree_accept" in cubin.sass()
    assert "ATOMS.MIN" in cubin.sass()  # the child that its parent wanted
    registers = cubin.resources["tree_accept"].registers
    assert f"tree_accept: {registers} registers, " in cubin.report()
    assert repr(cubin) == f"Cubin('tree_accept', sm_90a, {len(cubin.code)} bytes)"


def test_nvrtc_is_named_where_it_is_missing(monkeypatch):
    from cuda.bindings import nvrtc

    def absent():
        raise RuntimeError("libnvrtc.so.13 was not found")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", absent)
    with pytest.raises(BackendUnavailable, match=r"libnvrtc\.so\.13 was not found.*pip install cuda-python"):
        nvrtc_version()


def write_table():
    cache = DiskCache(Path(os.environ.get("KDNB_CACHE_DIR", "build/resources")))
    kernels = {
        name: {
            f"{dtype} {arch}": taken(name, dtype == "bfloat16", arch, cache)[1]
            for arch in ARCHS
            for dtype in ("float32", "bfloat16")
        }
        for name in sorted(SPECIALISATIONS)
    }
    tables = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
    TABLE.write_text(json.dumps(tables | {VERSION: kernels}, indent=1) + "\n")


if __name__ == "__main__":
    write_table()

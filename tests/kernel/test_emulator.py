"""The CPU that plays a GPU reports what a GPU would hang on, overwrite or leave to chance."""

import numpy as np
import pytest

from kdnb.backends.emulated_device import EmulatedDevice
from kdnb.backends.kernel_backend import FLOAT32, INT32, KernelBackend
from kdnb.errors import ConfigError, KernelError
from kdnb.kernels.source import KernelSource

HEAD = '#include "common.cuh"\nextern "C" __global__ void probe(int* out, int size) {\n'


def run(body, *, block=64, grid=(1,), size=64, shared=0, **options):
    """Launch a kernel `probe(int* out, int size)` of one thread an entry; the integers it wrote."""
    device = EmulatedDevice(bodies={"probe": f"{HEAD}{body}\n}}\n"}, **options)
    backend = KernelBackend(device)
    out = backend.zeros_of((size,), INT32)
    backend.launch("probe", "probe", grid, [out, size], block=block, shared=shared)
    return device.read(out)


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_a_barrier_that_not_all_threads_reach_is_reported(order):
    expected = (
        r"probe\.cu: probe: barrier divergence in block \(1, 0, 0\): 63 threads wait at a block barrier, "
        r"1 at a warp barrier, 0 have returned"
    )
    with pytest.raises(KernelError, match=expected):
        run(
            "if (blockIdx.x == 1 && threadIdx.x == 9) __syncwarp(); else __syncthreads();",
            order=order,
            grid=(3,),
            threads=1,
        )


def test_threads_that_returned_are_not_waited_for():
    out = run("if (threadIdx.x % 3 == 0) return; __syncthreads(); out[threadIdx.x] = 1;")
    assert out.tolist() == [int(i % 3 != 0) for i in range(64)]


@pytest.mark.parametrize(("place", "words"), [("-1", "before the beginning"), ("size", "behind the end")])
def test_a_write_outside_is_reported_with_kernel_and_argument(place, words):
    with pytest.raises(KernelError, match=rf"probe\.cu: probe wrote {words} of its argument 0, DeviceArray"):
        run(f"if (threadIdx.x == 5) out[{place}] = 1;")


RACY = """
    __shared__ int held[64];
    held[threadIdx.x] = threadIdx.x;
    {barrier}
    out[threadIdx.x] = held[(threadIdx.x + {by}) % 64];
"""


@pytest.mark.parametrize("by", [1, 63, 32])
def test_another_order_exposes_a_missing_barrier(by):
    want = ((np.arange(64) + by) % 64).tolist()
    wrong = []
    for order in ("forward", "reversed", "shuffled"):
        right = run(RACY.format(barrier="__syncthreads();", by=by), order=order)
        assert right.tolist() == want
        wrong.append(run(RACY.format(barrier="", by=by), order=order).tolist() != want)
    assert wrong[2]  # shuffled always, the others by the direction that is read in
    assert any(wrong[:2])


def test_dynamic_shared_memory_is_poisoned_before_every_block():
    body = """
    DYNAMIC_SHARED(int, held);
    out[blockIdx.x * blockDim.x + threadIdx.x] = held[threadIdx.x];
    held[threadIdx.x] = 7;
    """
    assert run(body, grid=(2,), block=32, shared=128, threads=1).tolist() == [-1] * 64
    backend = KernelBackend(EmulatedDevice())
    assert np.isnan(backend.device.read(backend.empty((9,), FLOAT32))).all()  # so is new memory


def test_warp_collectives():
    body = """
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    const double wide = __shfl_sync(ALL_LANES, 0.5 + threadIdx.x, 3);
    const bool right =
        __shfl_sync(ALL_LANES, int(threadIdx.x), lane + 1) == 32 * warp + (lane + 1) % 32 &&
        __shfl_xor_sync(ALL_LANES, int(threadIdx.x), 5) == 32 * warp + (lane ^ 5) &&
        __shfl_up_sync(ALL_LANES, int(threadIdx.x), 4u) == int(threadIdx.x) - (lane < 4 ? 0 : 4) &&
        __ballot_sync(ALL_LANES, lane % 3 == warp) == (warp ? 0x92492492u : 0x49249249u) &&
        __ballot_sync(half, 1) == half && wide == 32 * warp + 3.5 && warp_sum(lane) == 496 &&
        block_sum(1) == 64 && block_max(int(threadIdx.x * 7 % 64)) == 63 &&
        __syncthreads_or(threadIdx.x == 40) == 1 && __syncthreads_or(0) == 0;
    atomicAdd(&out[0], int(right));
    atomicMin(&out[1], -int(threadIdx.x));
    atomicMax(&out[2], int(threadIdx.x));
    """
    for order in ("forward", "reversed", "shuffled"):
        assert run(body, order=order)[:3].tolist() == [64, -63, 63]


def test_grids_of_three_axes_in_every_order():
    body = """
    const int at = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x == 0) out[at] += at + 1;
    """
    for order in ("forward", "reversed"):
        for threads in (1, 3):
            out = run(body, grid=(2, 3, 4), block=32, order=order, threads=threads)
            assert out[:25].tolist() == [*range(1, 25), 0]


def test_constants_and_numbers_arrive_as_they_are():
    body = """#include "common.cuh"
extern "C" __global__ void probe(int* out, int a, int64_t b, float c, const float* none) {
    out[0] = a, out[1] = int(b >> 40), out[2] = c == 0.1f, out[3] = none == nullptr;
    out[4] = SIZE, out[5] = FLAG, out[6] = SCALE == 0.3f;
}
"""
    device = EmulatedDevice(bodies={"probe": body})
    backend = KernelBackend(device)
    out = backend.empty((7,), INT32)
    constants = {"SIZE": 12, "FLAG": True, "SCALE": 0.3}
    backend.launch("probe", "probe", (1,), [out, -3, 5 << 40, 0.1, None], constants, block=1)
    assert device.read(out).tolist() == [-3, 5, 1, 1, 12, 1, 1]
    with pytest.raises(TypeError, match=r"probe\.cu: probe argument 0 is a pointer, but got 3"):
        backend.launch("probe", "probe", (1,), [3, -3, 5, 0.1, None], constants)
    with pytest.raises(TypeError, match="argument 1 is a number"):
        backend.launch("probe", "probe", (1,), [out, None, 5, 0.1, None], constants)


def test_a_kernel_that_does_not_compile_shows_the_lines():
    with pytest.raises(KernelError) as caught:
        run("int x = 3;\n    out[0] = nonsense;")
    message = str(caught.value)
    assert message.startswith("probe.cu does not compile for the CPU:")
    assert "probe.cu:4" in message
    assert "nonsense" in message
    with pytest.raises(
        KernelError, match=r"absent\.cu is not in kdnb/cuda_src, which has the kernels .*rms_norm"
    ):
        _ = KernelSource.of("absent", {}).text
    with pytest.raises(KernelError, match=r"missing\.cuh is not in kdnb/cuda_src"):
        _ = KernelSource.of("probe", {}, body='#include "missing.cuh"\n').text


def test_an_unknown_order_is_refused():
    with pytest.raises(ConfigError, match='order is "sideways"; use one of forward, reversed, shuffled'):
        EmulatedDevice(order="sideways")


def test_an_empty_grid_launches_nothing():
    assert run("out[0] = 1;", grid=(0,))[0] == 0

"""The pool of device memory, with a resource that stands for a small GPU."""

import pytest

from kdnb.backends import memory_pool
from kdnb.backends.memory_pool import LARGE, SMALLEST, MemoryPool
from kdnb.errors import CapacityError


class Buffer:
    def __init__(self, resource, size):
        self.size, self.handle, self._resource = size, resource.next_address, resource
        resource.next_address += size

    def close(self, stream):
        self._resource.left += self.size


class SmallGpu:
    """Has `left` bytes."""

    def __init__(self, left):
        self.left, self.next_address, self.calls = left, 1 << 20, 0

    def allocate(self, size, stream):
        self.calls += 1
        if size > self.left:
            raise MemoryError("out of memory")
        self.left -= size
        return Buffer(self, size)


class Stream:
    def sync(self):
        pass


@pytest.fixture
def gpu(monkeypatch):
    gpu = SmallGpu(8 << 20)
    monkeypatch.setattr(memory_pool, "_free_bytes", lambda: gpu.left)
    return gpu


def test_a_block_is_used_again_for_an_array_of_its_size(gpu):
    pool = MemoryPool(gpu, Stream())
    first = pool.take(1000, "x")
    address = first.pointer
    assert first.num_bytes == 1024
    del first
    assert pool.take(700, "y").pointer == address
    assert gpu.calls == 1
    assert pool.take(1, "z").num_bytes == SMALLEST
    assert pool.take((1 << 20) + 1, "large").num_bytes == LARGE


def test_what_is_kept_is_returned_before_memory_is_called_full(gpu):
    pool = MemoryPool(gpu, Stream())
    del (blocks := [pool.take(1 << 20, "x") for _ in range(8)])[:]
    assert blocks == []
    assert gpu.left == 0
    assert pool.take(4 << 20, "one large array").num_bytes == 4 << 20
    assert pool.held_bytes == 4 << 20


def test_out_of_memory_says_for_what_and_how_much(gpu):
    pool = MemoryPool(gpu, Stream())
    held = pool.take(6 << 20, "weights")
    expected = (
        r"no device memory for an array \[9\] of float32: 9,000,000 bytes are needed beside 6,291,456 in use "
        r"\(2,097,152 free on the device\): out of memory\. Use a shorter context"
    )
    with pytest.raises(CapacityError, match=expected):
        pool.take(9_000_000, "an array [9] of float32")
    assert held.num_bytes == 6 << 20
    assert pool.take(1 << 20, "a small one").num_bytes == 1 << 20  # still usable


def test_a_sibling_shares_nothing_but_the_gpu(gpu):
    pool = MemoryPool(gpu, Stream())
    del (block := [pool.take(1000, "x")])[:]
    assert block == []
    assert pool.sibling().take(1000, "y").num_bytes == 1024
    assert gpu.calls == 2

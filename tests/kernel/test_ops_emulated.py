"""Every op of the kernel backend against float64, on a CPU that plays a GPU; thread orders change no bit."""

from typing import get_args

import numpy as np
import pytest

from kdnb.backends.emulated_device import EmulatedDevice
from kdnb.backends.kernel_backend import KernelBackend
from kdnb.testing import CheckFailed
from kdnb.testing.judge import Judge
from kdnb.testing.ops import OPS, check_ops
from tests.support.kernels import Order, edited

# ops that store no value in the backend's dtype: bfloat16 would only compile them again
WITHOUT_REAL = {"router", "rope", "top_k", "argmax", "sample", "tree_build", "tree_accept"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_op_in_every_order(dtype):
    only = [name for name in OPS if dtype == "float32" or name not in WITHOUT_REAL]
    orders = get_args(Order) if dtype == "float32" else ("forward", "shuffled")
    digests = {
        order: check_ops(KernelBackend(EmulatedDevice(order=order), dtype), only=only) for order in orders
    }
    assert len(set(digests.values())) == 1, digests


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_inputs(dtype, seed):
    check_ops(KernelBackend(EmulatedDevice(order="shuffled", seed=seed), dtype), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OPS) - {"linear", "mlp", "experts", "verify_attention", "norms"}))
def test_shapes_of_real_models(name):
    """Those that do not take minutes here; a GPU runs them all."""
    check_ops(KernelBackend(EmulatedDevice()), wide=True, only=[name])


def test_a_wrong_value_is_named_with_its_place_and_both_numbers():
    old, new = "g / (1.0f + expf(-g))", "(i == 15 ? 2.0f : 1.0f) * g / (1.0f + expf(-g))"
    backend = KernelBackend(EmulatedDevice(bodies=edited("swiglu", old, new)))
    with pytest.raises(CheckFailed) as caught:
        check_ops(backend, only=["mlp"])
    assert str(caught.value).startswith("mlp [9, 40], 70 inside is wrong in ")
    assert "first at [0, 0]: expected " in str(caught.value)
    assert ", got " in str(caught.value)


def test_what_the_judge_lets_pass():
    judge = Judge(KernelBackend(EmulatedDevice(), "bfloat16"), 0, wide=False)
    one = np.ones((2, 3))
    judge.close("float32", (one + 1.9e-5).astype(np.float32), one)
    with pytest.raises(CheckFailed, match=r"a is wrong in 1 of 6 values, first at \[1, 2\]: expected 1.0"):
        judge.close("a", np.where(np.arange(6).reshape(2, 3) == 5, 1 + 2.2e-5, 1).astype(np.float32), one)
    with pytest.raises(CheckFailed, match="NaN|nan"):
        judge.close("a", np.full((2, 3), np.nan, dtype=np.float32), one)
    with pytest.raises(CheckFailed, match=r"a has shape \[3\], expected \[2, 3\]"):
        judge.exact("a", np.ones(3), one)
    stored = judge.backend.put(np.array([1 + 2.0**-7]), judge.backend.real)
    judge.close("half a unit", stored, np.array([1 + 1.5 * 2.0**-8]))
    with pytest.raises(CheckFailed, match="half a unit and more is wrong"):
        judge.close("half a unit and more", stored, np.array([1 + 0.9 * 2.0**-8]))
    judge.exact("infinities", np.array([np.inf, -np.inf, np.nan]), np.array([np.inf, -np.inf, np.nan]))
    with pytest.raises(CheckFailed, match="infinities is wrong in 1"):
        judge.exact("infinities", np.array([np.inf]), np.array([-np.inf]))

"""The whole loop runs on arrays that show only their shape."""

import numpy as np
import pytest

import kdnb
from kdnb.backends import Backend
from tests.support.opaque import OpaqueArray, OpaqueBackend

PROMPT = "def read(self, size):\n\tif size"


@pytest.mark.parametrize("policy", ["ddtree", "chain", "threshold"])
def test_same_run_as_numpy(policy):
    runs = []
    for backend in ("numpy", OpaqueBackend()):
        target = kdnb.load_target("golden", backend=backend)
        drafter = kdnb.load_drafter("golden", target)
        runs.append(
            kdnb.generate(
                target,
                PROMPT,
                drafter,
                max_new_tokens=24,
                node_budget=12,
                policy=policy,
                trace="full",
                prefill_chunk=7,
            )
        )
    ours, opaque = runs
    assert opaque.token_ids.tolist() == ours.token_ids.tolist()
    for a, b in zip(ours.rounds, opaque.rounds, strict=True):
        np.testing.assert_array_equal(a.tree.parents, b.tree.parents)
        np.testing.assert_array_equal(a.tree.token_ids, b.tree.token_ids)
        np.testing.assert_array_equal(a.accepted, b.accepted)


def test_arrays_stay_opaque_and_taps_come_down_as_numpy():
    backend = OpaqueBackend()
    target = kdnb.load_target("golden", backend=backend)
    result = target.forward([1, 2, 3], target.new_cache(), taps=["layers.1.out"], host=False)
    assert isinstance(result.logits, OpaqueArray)
    assert isinstance(result.taps["layers.1.out"], OpaqueArray)
    host = target.forward([1, 2, 3], target.new_cache(), taps=["layers.1.out"])
    assert isinstance(host.logits, np.ndarray)
    assert isinstance(host.taps["layers.1.out"], np.ndarray)


def test_every_op_of_the_protocol_is_used():
    backend = OpaqueBackend()
    target = kdnb.load_target("golden", backend=backend)
    drafter = kdnb.load_drafter("golden", target)
    kdnb.generate(target, PROMPT, drafter, max_new_tokens=24, node_budget=12, deterministic=True)
    target.forward([1, 2], target.new_cache(1), edit=lambda name, x: x * 2 if name == "norm.out" else None)
    cache = target.new_cache(4)
    target.forward([1, 2], cache)
    cache.commit()
    cache.latent(0)
    protocol = {name for name in vars(Backend) if not name.startswith("_")} - {"name", "dtype"}
    assert protocol - backend.calls == set(), "ops that nothing calls do not belong in the seam"

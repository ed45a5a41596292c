"""Weights in memory under a budget: least recently used out, results unchanged."""

import numpy as np
import pytest

import kdnb
from kdnb.backends.weight_store import WeightStore
from kdnb.checkpoint import TensorFolder
from kdnb.errors import ConfigError
from tests.support.goldens import DATA


def tensors():
    folder = TensorFolder(DATA / "targets" / "kimi_k25_int4", prefix="language_model.")
    return [s for n, s in folder.items() if n.endswith("up_proj.weight") and ".experts." in n]


def test_least_recently_used_goes_first():
    a, b, c = tensors()[:3]
    size = a.size * 4
    store = WeightStore(np.dtype(np.float32), 2 * size)
    first = store.get(a)
    store.get(b)
    assert store.get(a) is first
    store.get(c)  # b goes, not a
    assert store.get(a) is first
    assert store.used_bytes == 2 * size


def test_a_small_matrix_is_laid_out_once_and_counted_once():
    a = tensors()[0]
    store = WeightStore(np.dtype(np.float32), 10 * a.size * 4)
    plain = store.get(a)
    laid_out = store.matrix(a)
    np.testing.assert_array_equal(laid_out, plain)
    assert laid_out.flags.f_contiguous
    assert store.matrix(a) is laid_out
    assert store.used_bytes == a.size * 4


@pytest.mark.parametrize("budget", [0, 1, 5_000, 100_000])
@pytest.mark.parametrize("name", ["kimi_k25_int4", "v3_fp8", "v3"])
def test_any_budget_gives_the_same_logits(name, budget):
    prompt = list(range(1, 20))
    folder = DATA / "targets" / name
    free = kdnb.load_target(folder).logits(prompt)
    tight = kdnb.load_target(folder, expert_cache_bytes=budget).logits(prompt)
    np.testing.assert_allclose(tight, free, atol=1e-5, rtol=0)  # rows of a weight multiplied in other blocks


def test_negative_budget_is_refused():
    with pytest.raises(ConfigError, match="expert_cache_bytes is -1"):
        kdnb.load_target("golden", expert_cache_bytes=-1)


def test_two_threads_share_a_target_under_a_tight_budget():
    import threading

    target = kdnb.load_target(DATA / "targets" / "kimi_k25_int4", expert_cache_bytes=40_000)
    alone = target.logits(range(1, 30))
    results, errors = [], []

    def work():
        try:
            results.extend(target.logits(range(1, 30)) for _ in range(5))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(results) == 15
    for logits in results:
        np.testing.assert_array_equal(logits, alone)

"""The whole loop from kernels, on a CPU that plays a GPU: the run of numpy, round by round."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kdnb
from kdnb.backends import get_backend
from kdnb.decoding import Decoding
from kdnb.drafter_config import DFlashConfig
from kdnb.errors import ConfigError, DrafterError, ShapeError
from kdnb.loop import start
from kdnb.settings import Settings
from kdnb.testing import check_backend
from kdnb.testing.random_weights import random_drafter
from tests.support.goldens import DATA

PROMPT = "def read(self):\n"


@pytest.fixture(scope="module")
def pairs():
    """The golden pair on both backends."""
    targets = [kdnb.load_target("golden", backend=name) for name in ("numpy", "emulated")]
    return [(target, kdnb.load_drafter("golden", target)) for target in targets]


def same_run(want, got):
    assert got.token_ids.tolist() == want.token_ids.tolist()
    assert len(got.rounds) == len(want.rounds)
    for a, b in zip(want.rounds, got.rounds, strict=True):
        for name in ("token_ids", "parents", "depths", "ranks"):
            assert getattr(b.tree, name).tolist() == getattr(a.tree, name).tolist()
        np.testing.assert_allclose(b.tree.scores, a.tree.scores, atol=1e-4)
        np.testing.assert_allclose(b.tree.draft_log_probs, a.tree.draft_log_probs, atol=1e-4)
        assert b.next_ids.tolist() == a.next_ids.tolist()
        assert b.accepted.tolist() == a.accepted.tolist()
        assert b.emitted.tolist() == a.emitted.tolist()
        assert (b.prefix_len, b.bonus_id) == (a.prefix_len, a.bonus_id)
        assert b.min_gap == pytest.approx(a.min_gap, abs=1e-3)
        np.testing.assert_array_equal(b.tree.visible, a.tree.visible)


@pytest.mark.parametrize(
    "choices",
    [
        {"node_budget": 0},
        {"node_budget": 1},
        {"node_budget": 16},
        {"node_budget": 70},
        {"node_budget": 7, "policy": "chain"},
        {"node_budget": 16, "temperature": 0.8, "seed": 5},
        {"node_budget": 16, "temperature": 0.8, "top_k": 3},  # on the host
        {"node_budget": 16, "policy": "threshold"},  # on the host
        {"node_budget": 16, "stop_ids": [10]},
    ],
    ids=str,
)
def test_the_golden_pair(pairs, choices):
    runs = [
        kdnb.generate(target, PROMPT, drafter, max_new_tokens=20, **{"stop_ids": (), **choices})
        for target, drafter in pairs
    ]
    same_run(*runs)
    assert runs[0].stop_reason == runs[1].stop_reason


def test_round_by_round_is_the_whole_decoding(pairs):
    target, drafter = pairs[1]
    every = {"max_new_tokens": 20, "node_budget": 16, "stop_ids": ()}
    stepped = list(kdnb.rounds(target, PROMPT, drafter, **every))
    run = kdnb.generate(target, PROMPT, drafter, **every)
    assert [step.accepted.tolist() for step in stepped] == [step.accepted.tolist() for step in run.rounds]


def test_what_runs_on_the_device(pairs):
    target, drafter = pairs[1]

    def decoding(**choices):
        return start(target, PROMPT, drafter, Settings(max_new_tokens=4, **choices))

    assert decoding().device_rounds is not None
    assert decoding(policy="chain", temperature=1.0).device_rounds is not None
    for choices in ({"trace": "full"}, {"temperature": 1.0, "top_k": 4}, {"policy": "threshold"}):
        assert decoding(**choices).device_rounds is None


@pytest.mark.parametrize("name", ["v3_groups", "kimi_k25_int4"])
def test_two_targets_with_a_random_drafter(name):
    runs = []
    for backend in ("numpy", "emulated"):
        target = kdnb.load_target(DATA / "targets" / name, backend=backend)
        config = target.config
        drafter = random_drafter(
            DFlashConfig.from_dict(
                {
                    "block_size": 5,
                    "dflash_config": {"mask_token_id": 1, "target_layer_ids": [0, 1]},
                    "num_target_layers": config.num_hidden_layers,
                    "num_hidden_layers": 2,
                    "hidden_size": config.hidden_size,
                    "intermediate_size": 40,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "head_dim": 16,
                    "rms_norm_eps": 1e-6,
                    "rope_theta": 10000.0,
                    "layer_types": ["full_attention"] * 2,
                    "vocab_size": config.vocab_size,
                }
            ),
            target,
        )
        ids = list(range(5, 17))
        runs.append(kdnb.generate(target, ids, drafter, max_new_tokens=8, node_budget=12, stop_ids=()))
    same_run(*runs)


def test_an_interrupted_decoding_goes_on(pairs):
    target, drafter = pairs[1]
    whole = kdnb.generate(target, PROMPT, drafter, max_new_tokens=16, node_budget=8, stop_ids=())
    seen = []

    def interrupt(token_id):
        seen.append(token_id)
        if len(seen) == 5:
            raise KeyboardInterrupt

    settings = Settings(max_new_tokens=16, node_budget=8, stop_ids=(), on_token=interrupt)
    decoding = start(target, PROMPT, drafter, settings)
    with pytest.raises(KeyboardInterrupt):
        decoding.run_all()
    assert 0 < len(decoding.token_ids) < 16
    assert decoding.token_ids == whole.token_ids[: len(decoding.token_ids)].tolist()
    decoding.run_all()
    assert decoding.token_ids == whole.token_ids.tolist()


def test_beyond_the_drafters_first_rows(pairs):
    """A drafter's cache has room for 256 rows at first; a graph must not write behind them."""
    prompt = pairs[0][0].tokenizer.encode(PROMPT * 20)[:250]
    runs = [
        kdnb.generate(target, prompt, drafter, max_new_tokens=16, node_budget=3, stop_ids=())
        for target, drafter in pairs
    ]
    assert runs[0].rounds[-1].prefix_len > 256
    same_run(*runs)


def test_threads_share_a_backend(pairs):
    """Callbacks of a notebook may decode beside the main thread."""
    target, drafter = pairs[1]
    every = {"max_new_tokens": 8, "node_budget": 4, "stop_ids": ()}
    prompts = [PROMPT, "import os\n"]
    want = [kdnb.generate(target, prompt, drafter, **every).token_ids.tolist() for prompt in prompts]
    drafters = [kdnb.load_drafter("golden", target) for _ in prompts]
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda p, d: kdnb.generate(target, p, d, **every), prompts, drafters)
        assert [run.token_ids.tolist() for run in runs] == want


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_backend_as_a_whole(dtype):
    if dtype == "float16":
        with pytest.raises(ConfigError, match='dtype "float16" is not one the emulated backend computes in'):
            get_backend("emulated", dtype=dtype)
    else:
        check_backend(get_backend("emulated", dtype=dtype))


def test_two_decodings_cannot_share_a_drafter(pairs):
    target, drafter = pairs[1]
    every = {"max_new_tokens": 12, "node_budget": 4, "stop_ids": ()}
    first = kdnb.rounds(target, PROMPT, drafter, **every)
    next(first)
    kdnb.generate(target, "import os\n", drafter, **every)
    with pytest.raises(DrafterError, match="another decoding uses it"):
        next(first)


def test_deterministic_is_bit_for_bit():
    target = kdnb.load_target("golden", backend=get_backend("emulated", dtype="bfloat16", deterministic=True))
    drafter = kdnb.load_drafter("golden", target)
    plain = kdnb.generate(target, PROMPT, max_new_tokens=16, stop_ids=())
    for node_budget in (1, 5, 33):
        run = kdnb.generate(target, PROMPT, drafter, max_new_tokens=16, node_budget=node_budget, stop_ids=())
        assert run.token_ids.tolist() == plain.token_ids.tolist()


@pytest.mark.parametrize(("who", "error"), [("target", ShapeError), ("drafter", DrafterError)])
def test_logits_that_are_not_finite_are_refused(pairs, monkeypatch, who, error):
    target, drafter = pairs[1]
    decoding: Decoding = start(
        target, PROMPT, drafter, Settings(max_new_tokens=8, node_budget=4, stop_ids=())
    )
    decoding.prefill()
    backend = target.backend
    real = backend.logits
    calls = []

    def broken(x, weight):
        logits = real(x, weight)
        if weight.shape[0] == target.config.vocab_size:
            calls.append(len(logits))
            if (len(calls) % 2 == 1) == (who == "drafter"):  # the block's, then the tree's
                host = backend.download(logits)
                host[1] = np.nan
                backend.device.write(logits, host)
        return logits

    monkeypatch.setattr(backend, "logits", broken)
    with pytest.raises(error, match="NaN or infinity only; the"):
        decoding.round()
    monkeypatch.undo()
    decoding.round()  # the round that broke is undone
    assert decoding.token_ids

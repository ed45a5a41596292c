"""The two seed shapes against transformers, plain and through trees."""

import hashlib
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import kdnb
from kdnb.drafters import NGram, NoisyOracle, Replay
from tests.support.goldens import DATA, worst
from tests.support.seed_targets import NUM_TOKENS, PROMPT, SHAPES, write_seed_target

GOLDEN = DATA / "seed_targets.safetensors"


@pytest.fixture(scope="module", params=sorted(SHAPES))
def case(request, tmp_path_factory):
    folder = write_seed_target(tmp_path_factory.mktemp("seed"), request.param)
    with safe_open(GOLDEN, "np") as file:
        digests = json.loads(file.metadata()["digests"])
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == digests[request.param], "other weights than transformers saw"
    arrays = load_file(GOLDEN)
    return (
        kdnb.load_target(folder),
        arrays[f"{request.param}.logits"],
        arrays[f"{request.param}.token_ids"].tolist(),
    )


def test_logits_equal_transformers_within_1e_5(case):
    target, logits, token_ids = case
    ours = target.logits([*PROMPT, *token_ids])
    assert float(np.sqrt((logits**2).mean())) > 0.5
    assert worst(ours, logits) <= 1e-5


def test_plain_decoding_gives_transformers_tokens(case):
    target, _, token_ids = case
    run = kdnb.generate(target, PROMPT, max_new_tokens=NUM_TOKENS, stop_ids=())
    assert run.token_ids.tolist() == token_ids


def test_a_perfect_drafter_of_block_8_emits_24_tokens_in_3_forwards(case):
    target, _, token_ids = case
    drafter = Replay([*PROMPT, *token_ids], block_size=8)
    for policy in ("chain", "ddtree"):
        run = kdnb.generate(
            target,
            PROMPT,
            drafter,
            max_new_tokens=NUM_TOKENS,
            node_budget=7,
            policy=policy,
            stop_ids=(),
        )
        assert run.token_ids.tolist() == token_ids
        assert len(run.rounds) == 3
        assert [r.emitted.size for r in run.rounds] == [8, 8, 8]
        assert run.summary()["mean_emitted_per_round"] == 8.0


@pytest.mark.parametrize("budget", [1, 5, 16, 64])
def test_trees_of_other_drafters_emit_the_same_tokens(case, budget):
    target, _, token_ids = case
    for drafter in (NGram(), NoisyOracle(target, max_depth=4)):
        run = kdnb.generate(
            target,
            PROMPT,
            drafter,
            max_new_tokens=NUM_TOKENS,
            node_budget=budget,
            stop_ids=(),
        )
        assert run.token_ids.tolist() == token_ids

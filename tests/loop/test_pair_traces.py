"""The golden pair: every prompt and budget, every round, against the DDTree reference code's traces."""

import json

import numpy as np
import pytest

import kdnb
from tests.support.goldens import DATA

PAIR = json.loads((DATA / "pair" / "golden.json").read_text())
# The reference looks at the length before its bonus token counts: it runs a last round for a token that
# it already has. One token more asks kdnb for that round too.
NUM_TOKENS = PAIR["max_new_tokens"]
ASK = NUM_TOKENS + 1
CASES = [
    pytest.param(prompt, budget, id=f"{index}-b{budget}")
    for index, prompt in enumerate(PAIR["prompts"])
    for budget in PAIR["budgets"]
]


@pytest.fixture(scope="module")
def pair():
    target = kdnb.load_target("golden")
    return target, kdnb.load_drafter("golden", target)


@pytest.mark.parametrize(("prompt", "budget"), CASES)
def test_ddtree_rounds(pair, prompt, budget):
    target, drafter = pair
    golden = prompt["ddtree"][str(budget)]
    run = kdnb.generate(
        target,
        prompt["ids"],
        drafter,
        max_new_tokens=ASK,
        node_budget=budget,
        stop_ids=(),
    )
    assert run.token_ids.tolist()[:NUM_TOKENS] == golden["tokens"] == prompt["ar"]["tokens"]
    assert len(run.rounds) == len(golden["rounds"])
    for ours, theirs in zip(run.rounds, golden["rounds"], strict=True):
        check_round(ours, theirs)


def check_round(ours, theirs):
    """Compare one round exactly; scores to 1e-4."""
    # A smaller gap than 1e-4 may order two nodes differently; the goldens hold none that does.
    tree = ours.tree
    assert ours.prefix_len == theirs["start"]
    assert tree.token_ids[0] == theirs["root_token"]
    assert tree.token_ids[1:].tolist() == theirs["node_token_ids"]
    assert tree.parents.tolist() == theirs["parents"]
    assert tree.depths[1:].tolist() == theirs["node_depths"]
    np.testing.assert_allclose(tree.scores[1:], theirs["node_scores"], atol=1e-4, rtol=0)
    assert ours.next_ids.tolist() == theirs["posterior"]
    assert ours.accepted.tolist() == theirs["accepted_indices"]
    assert ours.bonus_id == theirs["next_token"]
    for row, bits in enumerate(theirs.get("visibility", [])):
        assert "".join("01"[int(bit)] for bit in tree.visible[row, : row + 1]) == bits


@pytest.mark.parametrize("prompt", PAIR["prompts"], ids=lambda prompt: prompt["name"])
def test_chain_rounds(pair, prompt):
    target, drafter = pair
    run = kdnb.generate(
        target,
        prompt["ids"],
        drafter,
        max_new_tokens=ASK,
        policy="chain",
        stop_ids=(),
    )
    golden = prompt["dflash"]
    assert run.token_ids.tolist()[:NUM_TOKENS] == golden["tokens"]
    assert len(run.rounds) == len(golden["rounds"])
    for ours, theirs in zip(run.rounds, golden["rounds"], strict=True):
        assert ours.prefix_len == theirs["start"]
        assert ours.tree.token_ids.tolist() == [theirs["root_token"], *theirs["draft_tokens"]]
        assert ours.next_ids.tolist() == theirs["posterior"]
        assert len(ours.accepted) == theirs["accepted"]
        assert ours.bonus_id == theirs["next_token"]


@pytest.mark.parametrize("prompt", PAIR["prompts"], ids=lambda prompt: prompt["name"])
@pytest.mark.parametrize("case", ["newline", "tok20", "first", "eos_never"])
def test_stop_ids_cut_inside_an_accepted_path(pair, prompt, case):
    target, drafter = pair
    golden = prompt["stop"][case]
    for policy, budget in (("chain", 7), ("ddtree", 16)):
        run = kdnb.generate(
            target,
            prompt["ids"],
            drafter,
            max_new_tokens=NUM_TOKENS,
            policy=policy,
            node_budget=budget,
            stop_ids=golden["stop_token_ids"],
        )
        assert run.token_ids.tolist() == golden["tokens"]
        stopped = golden["tokens"][-1] in golden["stop_token_ids"]
        assert run.stop_reason == ("stop_id" if stopped else "length")
        assert sum(len(r.emitted) for r in run.rounds) == len(golden["tokens"]) - 1


@pytest.mark.parametrize("case", sorted(PAIR["tokens_per_round"]))
def test_mean_tokens_per_round(pair, case):
    target, drafter = pair
    choice = {"policy": "chain", "node_budget": 7} if case == "dflash" else {"node_budget": int(case)}
    emitted = []
    for prompt in PAIR["prompts"]:
        run = kdnb.generate(
            target,
            prompt["ids"],
            drafter,
            max_new_tokens=ASK,
            stop_ids=(),
            **choice,
        )
        emitted += [len(r.accepted) for r in run.rounds]
    assert np.mean(emitted) == pytest.approx(PAIR["tokens_per_round"][case], abs=1e-3)


def test_edges(pair):
    target, drafter = pair
    edges = PAIR["edges"]
    for name in (
        "budget_0",
        "budget_over_vocab",
        "max_new_1",
        "max_new_5",
        "budget_256",
        "budget_default_none",
    ):
        edge = edges[name]
        run = kdnb.generate(
            target,
            PAIR["prompts"][edge["prompt"]]["ids"],
            drafter,
            max_new_tokens=edge["max_new_tokens"] + 1,
            node_budget=edge["budget"],
            stop_ids=(),
        )
        assert run.token_ids.tolist()[: len(edge["tokens"])] == edge["tokens"], name
        assert [len(r.accepted) for r in run.rounds] == edge["acceptance_lengths"], name
        check_round(run.rounds[0], edge["round0"])


def test_one_token_needs_no_round(pair):
    target, drafter = pair
    assert kdnb.generate(target, [1], drafter, max_new_tokens=1).rounds == []


def test_a_real_token_equal_to_the_mask_id_is_kept(pair):
    edge = PAIR["edges"]["mask_id_is_a_real_token"]
    target, _ = pair
    prompt = PAIR["prompts"][edge["prompt"]]["ids"]
    run = kdnb.generate(target, prompt, max_new_tokens=len(edge["correct_tokens"]), stop_ids=())
    assert run.token_ids.tolist() == edge["correct_tokens"]

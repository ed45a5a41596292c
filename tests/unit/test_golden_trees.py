"""Published golden cases of other projects' tests, and of the DDTree reference code."""

import json

import numpy as np
import pytest

import kdnb
from kdnb.reference.cache_compact import compact
from kdnb.tree import DraftTree
from tests.support.goldens import DATA


def mask_rows(tree):
    return ["".join("01"[int(bit)] for bit in row) for row in tree.visible]


def test_sglang_verify_tree_greedy():
    candidates = [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]]
    next_token = [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]]
    next_sibling = [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]]
    target = [[3, 18, 18, 4, 5, 18], [11, 18, 18, 18, 12, 18]]
    expected = [([0, 3, 4, 5], 18), ([0, 4, 5], 18)]  # rows 0 3 4 5 and 6 10 11 in SGLang's numbering
    for ids, first, sibling, choice, (path, bonus) in zip(
        candidates, next_token, next_sibling, target, expected, strict=True
    ):
        # SGLang's second request lists a sibling with a lower node number than its left neighbour
        tree = DraftTree.from_sglang(ids, first, sibling)
        acceptance = kdnb.accept(tree, np.array(choice))
        assert acceptance.accepted.tolist() == path
        assert acceptance.bonus_id == bonus
        assert acceptance.num_accepted == len(path) - 1


def test_ngram_mask_of_sglang():
    tree = DraftTree.from_parents([1, 2, 3, 4], [-1, 0, 0, 2])
    assert mask_rows(tree) == ["1000", "1100", "1010", "1011"]
    _, first, sibling = tree.to_sglang()
    assert first.tolist() == [1, -1, 3, -1]
    assert sibling.tolist() == [-1, 2, -1, -1]
    assert (12 + tree.depths).tolist() == [12, 13, 13, 14]


def test_dflash_tree_of_sglang():
    tree = DraftTree.from_parents([100, 101, 102, 103], [-1, 0, 0, 1])
    _, first, sibling = tree.to_sglang()
    assert first.tolist() == [1, 3, -1, -1]
    assert sibling.tolist() == [-1, 2, -1, -1]
    assert (7 + tree.depths).tolist() == [7, 8, 8, 9]
    assert mask_rows(tree) == ["1000", "1100", "1010", "1101"]


@pytest.mark.parametrize(
    ("token_ids", "parents", "target", "path", "bonus"),
    [
        ([0, 10, 20, 30], [-1, 0, 0, 1], [10, 30, 0, 7], [0, 1, 3], 7),
        ([0, 11, 22], [-1, 0, 1], [11, 22, 99], [0, 1, 2], 99),
        ([0, 10], [-1, 0], [999, 0], [0], 999),
    ],
)
def test_accept_of_sglang(token_ids, parents, target, path, bonus):
    acceptance = kdnb.accept(DraftTree.from_parents(token_ids, parents), target)
    assert acceptance.accepted.tolist() == path
    assert acceptance.bonus_id == bonus
    assert acceptance.num_emitted == len(path)


def test_best_first_of_sglang():
    log_probs = np.full((2, 5), -50.0, dtype=np.float32)
    log_probs[0, [1, 2]] = [-0.01, -5]
    log_probs[1, [3, 4]] = [-0.01, -5]
    assert kdnb.build_tree(log_probs, 2).token_ids.tolist() == [-1, 1, 3]
    full = kdnb.build_tree(np.log([[0.5, 0.5], [0.5, 0.5]]).astype(np.float32), 999)
    assert full.num_nodes == 7
    assert kdnb.build_tree(np.zeros((0, 5), dtype=np.float32), 4).num_nodes == 1


def test_vllm_ddtree():
    logits = np.full((3, 6), -10.0, dtype=np.float32)
    logits[0, 1], logits[0, 2], logits[1, 3], logits[1, 4], logits[2, 5] = 4, 3, 5, 1, 6
    tree = kdnb.policies.DDTree()(kdnb.Draft(0, logits), 4)
    assert tree.token_ids[1:].tolist() == [1, 3, 5, 2]
    assert tree.depths[1:].tolist() == [1, 2, 3, 1]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 0]
    assert mask_rows(tree) == ["10000", "11000", "11100", "11110", "10001"]
    acceptance = kdnb.accept(tree, [1, 3, 5, 0, 0])
    assert acceptance.accepted.tolist() == [0, 1, 2, 3]
    assert acceptance.bonus_id == 0


PROBS = [
    [0.46, 0.27, 0.13, 0.08, 0.04, 0.02],
    [0.39, 0.09, 0.31, 0.05, 0.11, 0.05],
    [0.07, 0.58, 0.17, 0.03, 0.10, 0.05],
    [0.62, 0.02, 0.06, 0.19, 0.08, 0.03],
]


def test_reference_code_on_a_case_without_ties():
    tree = kdnb.build_tree(np.log(PROBS).astype(np.float32), 10)
    assert tree.token_ids[1:].tolist() == [0, 1, 0, 2, 2, 0, 1, 2, 1, 3]
    assert tree.depths[1:].tolist() == [1, 1, 2, 2, 1, 2, 3, 2, 3, 1]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 0, 2, 3, 2, 4, 0]
    scores = [0.46, 0.27, 0.1794, 0.1426, 0.13, 0.1053, 0.104052, 0.0837, 0.082708, 0.08]
    np.testing.assert_allclose(np.exp(tree.scores[1:]), scores, rtol=1e-6)
    assert np.exp(tree.scores[1:]).sum() == pytest.approx(1.63776, abs=1e-5)
    assert mask_rows(tree) == [
        "10000000000",
        "11000000000",
        "10100000000",
        "11010000000",
        "11001000000",
        "10000100000",
        "10100010000",
        "11010001000",
        "10100000100",
        "11001000010",
        "10000000001",
    ]
    acceptance = kdnb.accept(tree, [0, 2, 1, 3, 5, 5, 5, 5, 5, 5, 5])
    assert acceptance.accepted.tolist() == [0, 1, 4]
    assert acceptance.bonus_id == 5
    six = kdnb.build_tree(np.log(PROBS).astype(np.float32), 6)
    assert six.token_ids.tolist() == tree.token_ids[:7].tolist()
    assert np.exp(six.scores[1:]).sum() == pytest.approx(1.2873, abs=1e-4)


def test_sglang_numbers_over_two_requests():
    """What SGLang's kernel returns for 6 nodes and 4 columns a request."""
    requests = [
        ([0, 1, 2, 3, 4, 5], [1, 2, -1, 4, 5, -1], [-1, 3, -1, -1, -1, -1], [3, 18, 18, 4, 5, 18]),
        ([7, 8, 9, 10, 11, 12], [4, 2, 3, -1, 5, -1], [-1, -1, -1, -1, 1, -1], [11, 18, 18, 18, 12, 18]),
    ]
    predicts, accept_index, accept_num = np.full(12, -1), np.full((2, 4), -1), []
    for request, (ids, first, sibling, choice) in enumerate(requests):
        acceptance = kdnb.accept(DraftTree.from_sglang(ids, first, sibling), choice)
        rows = 6 * request + acceptance.accepted
        predicts[rows] = np.array(choice)[acceptance.accepted]
        accept_index[request, : len(rows)] = rows
        accept_num.append(acceptance.num_accepted)
    assert predicts.tolist() == [3, -1, -1, 4, 5, 18, 11, -1, -1, -1, 12, 18]
    assert accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]
    assert accept_num == [3, 2]


def test_cache_compaction_of_vllm_ddtree():
    cache = np.arange(16.0).reshape(2, 8, 1)  # two layers; slots 4 and 7 are kept
    before = cache.copy()
    compact(cache, 4, np.array([4, 7]) - 4)
    np.testing.assert_array_equal(cache[:, 4], before[:, 4])
    np.testing.assert_array_equal(cache[:, 5], before[:, 7])
    np.testing.assert_array_equal(cache[:, :4], before[:, :4])


PAIR = json.loads((DATA / "pair/golden.json").read_text())
PAIR_ROUNDS = [
    (f"{prompt['name']}-{budget}-{index}", step)
    for prompt in PAIR["prompts"]
    for budget, golden in prompt["ddtree"].items()
    for index, step in enumerate(golden["rounds"])
]


@pytest.mark.parametrize("field", ["node_ranks", "visibility", "posterior"])
def test_every_round_of_the_golden_pair(field):
    """Structure alone: parents, depths, visibility, ranks, and the path that the posterior keeps."""
    seen = 0
    for name, step in PAIR_ROUNDS:
        if field not in step:
            continue
        seen += 1
        tree = DraftTree.from_ddtree(step)
        assert tree.token_ids[0] == step["root_token"], name
        back = tree.to_ddtree()
        for key in ("root_token", "node_token_ids", "node_depths", "parents", "node_scores"):
            assert back[key] == step[key], name
        if field == "posterior":
            acceptance = kdnb.accept(tree, step["posterior"])
            assert acceptance.accepted.tolist() == step["accepted_indices"], name
            assert acceptance.bonus_id == step["next_token"], name
        elif field == "visibility":
            rows = ["".join("01"[int(bit)] for bit in row[: i + 1]) for i, row in enumerate(tree.visible)]
            assert rows == step["visibility"], name
            assert not np.triu(tree.visible, 1).any(), name
        else:
            own_rank = [ranks[-1] for ranks in step["node_ranks"]]
            paths = [tuple(own_rank[node - 1] for node in tree.path(i)[1:]) for i in range(1, tree.num_nodes)]
            assert paths == [tuple(ranks) for ranks in step["node_ranks"]], name
            keys = list(zip((-tree.scores[1:]).tolist(), paths, strict=True))
            gaps = np.diff([score for score, _ in keys])
            assert all(keys[i] < keys[i + 1] or abs(gap) < 1e-6 for i, gap in enumerate(gaps)), name
    assert seen == {"node_ranks": 30, "visibility": 90, "posterior": len(PAIR_ROUNDS)}[field]

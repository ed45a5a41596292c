"""A round as JSON and back."""

import copy
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from kdnb.errors import TraceError
from kdnb.trace import RoundTrace
from kdnb.tree import DraftTree
from tests.support.traces import TREE, full_round, light_round

OPTIONAL = {
    "policy",
    "verify_rule",
    "target_log_prob",
    "cache_row",
    "draft_top_ids",
    "draft_top_log_probs",
    "target_top_ids",
    "target_top_log_probs",
    "visible_words",
}


def through_json(trace):
    return RoundTrace.from_json(json.loads(json.dumps(trace.to_json(), allow_nan=False)))


def assert_same(a, b):
    for field in fields(RoundTrace):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, np.ndarray):
            assert x.dtype == y.dtype, field.name
            np.testing.assert_array_equal(x, y, err_msg=field.name)
        elif isinstance(x, DraftTree):
            for name in ("token_ids", "parents", "depths", "scores", "ranks", "draft_log_probs"):
                np.testing.assert_array_equal(getattr(x, name), getattr(y, name), err_msg=name)
        else:
            assert x == y, field.name


@pytest.mark.parametrize("make", [light_round, full_round])
def test_round_trip(make):
    assert_same(make(), through_json(make()))


def test_the_named_fields_are_there_and_a_light_trace_has_no_others():
    data = light_round().to_json()
    named = {"prefix_len", "token_ids", "parents", "depths", "scores", "next_ids", "accepted", "bonus_id"}
    assert named | {"times_us"} <= set(data)
    assert not OPTIONAL & set(data)
    assert set(full_round().to_json()) >= OPTIONAL
    assert data["accepted"] == [0, 1, 4]
    assert data["times_us"]["verify"] == 100.125
    assert data["depths"] == [0, 1, 1, 2, 2, 2]


def test_what_was_not_recorded_is_absent_not_zero():
    bare = replace(
        light_round(next_ids=None, min_gap=None, times_us={}),
        tree=DraftTree(TREE.token_ids, TREE.parents),
    )
    data = bare.to_json()
    for name in ("next_ids", "min_gap", "times_us", "scores", "rank", "draft_log_prob"):
        assert name not in data
    back = through_json(bare)
    assert back.next_ids is None
    assert back.min_gap is None
    assert back.tree.scores is None
    assert back.draft_log_prob is None


def test_words_are_strings_of_16_digits_of_which_bit_j_is_node_j():
    data = full_round().to_json()
    assert data["visible_words"][5] == ["0000000000000025"]  # nodes 0, 2, 5
    wide = DraftTree.from_parents(range(70), range(-1, 69))
    words = replace(full_round(), tree=wide, accepted=np.array([0]), visible_words=wide.visible_words)
    row = words.to_json()["visible_words"][69]
    assert row == ["f" * 16, "000000000000003f"]


def test_a_probability_of_zero_is_null_and_comes_back():
    scores = TREE.scores.copy()
    scores[5] = -np.inf
    own = TREE.draft_log_probs.copy()
    own[5] = -np.inf
    target = full_round().target_log_prob.copy()
    target[2] = -np.inf
    trace = full_round(
        tree=replace(TREE, scores=scores, draft_log_probs=own), target_log_prob=target, min_gap=np.inf
    )
    data = trace.to_json()
    assert data["scores"][5] is None
    assert data["draft_log_prob"][5] is None
    assert data["target_log_prob"][2] is None
    assert "min_gap" not in data
    assert_same(replace(trace, min_gap=None), through_json(trace))


def test_nan_is_never_written():
    scores = TREE.scores.copy()
    scores[3] = np.nan
    with pytest.raises(TraceError, match="scores holds NaN"):
        light_round(tree=replace(TREE, scores=scores)).to_json()


def test_emitted_is_the_accepted_drafts_and_the_bonus_token_where_a_file_has_it_not():
    data = light_round().to_json()
    del data["emitted"]
    assert RoundTrace.from_json(data).emitted.tolist() == [10, 13, 9]


def test_names_of_the_full_trace_that_live_in_the_tree():
    trace = light_round()
    assert trace.rank.tolist() == [0, 0, 1, 0, 1, 0]
    assert trace.draft_log_prob[1] == pytest.approx(np.log(0.5))
    assert (trace.num_accepted, trace.num_emitted) == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix_len": 2.5}, "prefix_len must be a whole number"),
        ({"prefix_len": True}, "prefix_len must be a whole number"),
        ({"prefix_len": 1 << 40}, "prefix_len holds a number that does not fit into int32"),
        ({"token_ids": "abc"}, "token_ids must be a list of whole numbers"),
        ({"token_ids": [7, 10]}, "parents has shape [6] but the tree has 2 nodes"),
        ({"parents": [-1, 0, 0, 4, 1, 2]}, "node 3: parent 4 >= 3; parents must precede children"),
        ({"parents": [-1, 0, 0, -1, 1, 2]}, "node 3: parent -1; only the root has no parent"),
        ({"parents": [0, 0, 0, 1, 1, 2]}, "node 0: parent 0; the root comes first"),
        ({"accepted": []}, "accepted is []; it must start at the root"),
        ({"accepted": [1, 4]}, "accepted is [1, 4]; it must start at the root"),
        ({"accepted": [0, 9]}, "accepted is [0, 9] but the tree has nodes 0 to 5"),
        ({"accepted": [0, 2, 4]}, "from node 2 to node 4, whose parent is 1"),
        ({"next_ids": [1, 2]}, "next_ids has 2 rows but the tree has 6 nodes"),
        ({"scores": [0, "x", 0, 0, 0, 0]}, "scores must be a list of numbers"),
        ({"scores": [0, float("nan"), 0, 0, 0, 0]}, "scores must be a list of numbers"),
        ({"target_top_ids": [[1, 2], [3]]}, "target_top_ids must be equally long lists"),
        ({"times_us": [1, 2]}, "times_us must hold a number of microseconds per stage"),
        ({"min_gap": "small"}, "min_gap is 'small'; it must be a number"),
        ({"policy": 3}, "policy is 3; it must be a string"),
        ({"visible_words": [["0"]]}, "visible_words must hold 6 rows of 1 words"),
        ({"visible_words": [["1"]] * 6}, "visible_words[0] holds '1'; a word is a string of 16"),
    ],
)
def test_broken_fields_are_named(change, message):
    data = {**full_round().to_json(), **change}
    with pytest.raises(TraceError) as caught:
        RoundTrace.from_json(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["prefix_len", "token_ids", "parents", "accepted", "bonus_id"])
def test_missing_fields_are_named(name):
    data = light_round().to_json()
    del data[name]
    with pytest.raises(TraceError, match=f"the round has no {name}"):
        RoundTrace.from_json(data)


def test_a_round_that_is_no_object():
    with pytest.raises(TraceError, match="the round has type list"):
        RoundTrace.from_json([1, 2])


@pytest.mark.parametrize("junk", [None, [], {}, "x", -1, 1.5, True, [[1]], {"a": 1}, 10**400])
def test_whatever_stands_in_a_field_only_trace_errors_come_out(junk):
    whole = full_round().to_json()
    for name in whole:
        data = {**copy.deepcopy(whole), name: junk}
        try:
            RoundTrace.from_json(data)
        except TraceError:
            continue


def test_repr_is_one_line_without_an_address():
    assert repr(light_round()) == "RoundTrace(prefix_len=20, num_nodes=6, num_accepted=2, bonus_id=9)"

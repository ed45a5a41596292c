"""DraftTree: invariants, visibility, packing, drawing order, converters."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.arrays import pack_visible, unpack_visible
from kdnb.errors import ShapeError
from kdnb.reference.tree_accept import accept
from kdnb.tree import DraftTree


@st.composite
def trees(draw, max_nodes=150):
    n = draw(st.integers(1, max_nodes))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, n))]
    return DraftTree.from_parents(list(range(n)), parents)


def reachable(parents):
    """Visibility by walking up, one node at a time."""
    n = len(parents)
    seen = [[False] * n for _ in range(n)]
    for node in range(n):
        at = node
        while at != -1:
            seen[node][at] = True
            at = parents[at]
    return np.array(seen)


@settings(max_examples=50, deadline=None)
@given(trees())
def test_invariants(tree):
    parents = tree.parents.tolist()
    assert all(parents[i] < i for i in range(1, tree.num_nodes))
    np.testing.assert_array_equal(tree.visible, reachable(parents))
    np.testing.assert_array_equal(unpack_visible(tree.visible_words, tree.num_nodes), tree.visible)
    assert tree.visible_words.dtype == np.uint64
    assert tree.visible_words.shape == (tree.num_nodes, -(-tree.num_nodes // 64))
    for node in range(tree.num_nodes):
        path = tree.path(node)
        assert len(path) == tree.depths[node] + 1
        assert path == np.flatnonzero(tree.visible[node]).tolist()
    assert sorted(c for cs in tree.children for c in cs) == list(range(1, tree.num_nodes))


def test_bit_j_of_word_w_is_node_64_w_plus_j():
    visible = np.zeros((1, 130), dtype=bool)
    visible[0, [0, 63, 64, 129]] = True
    assert pack_visible(visible).tolist() == [[1 | 1 << 63, 1, 2]]


@settings(max_examples=50, deadline=None)
@given(trees(40))
def test_converters_give_the_tree_back(tree):
    index, first, sibling = tree.to_sglang()
    assert index.tolist() == list(range(tree.num_nodes))
    for back in (
        DraftTree.from_sglang(tree.token_ids, first, sibling),
        DraftTree.from_ddtree(tree.to_ddtree(), root_id=int(tree.token_ids[0])),
        DraftTree.from_json(tree.to_json()),
    ):
        assert back.parents.tolist() == tree.parents.tolist()
        assert back.token_ids.tolist() == tree.token_ids.tolist()


def test_from_parents_adds_up_log_probs_from_the_root():
    tree = DraftTree.from_parents([9, 1, 2, 3], [-1, 0, 1, 0], [7.0, -0.5, -0.25, -2.0])
    assert tree.scores.tolist() == [0.0, -0.5, -0.75, -2.0]
    assert tree.draft_log_probs.tolist() == [0.0, -0.5, -0.25, -2.0]
    assert DraftTree.from_parents([1, 2], [-1, 0]).scores is None


def test_optional_fields_are_absent_from_json():
    assert set(DraftTree.from_parents([1, 2], [-1, 0]).to_json()) == {"token_ids", "parents", "depths"}


@pytest.mark.parametrize(
    ("token_ids", "parents", "message"),
    [
        ([], [], "one id per node, root first"),
        ([[1]], [[-1]], "one id per node"),
        ([1, 2], [-1], r"parents has shape \[1\] but the tree has 2 nodes"),
        ([1, 2], [0, 0], "node 0: parent 0; the root comes first"),
        ([1, 2, 3], [-1, 2, 0], "node 1: parent 2 >= 1; parents must precede children"),
        ([1, 2, 3], [-1, 1, 0], "node 1: parent 1 >= 1"),
        ([1, 2, 3], [-1, 0, -1], "node 2: parent -1; only the root has no parent"),
        ([1, 5, 6, 5], [-1, 0, 0, 0], "nodes 1 and 3 are both token 5 below node 0; siblings must differ"),
        ([1, 2], [-1, 0.5], "parents has dtype float64"),
        ([1.5, 2], [-1, 0], "token_ids has dtype float64"),
    ],
)
def test_malformed_trees_are_refused(token_ids, parents, message):
    with pytest.raises(ShapeError, match=message):
        DraftTree.from_parents(token_ids, parents)


def test_malformed_pointers_are_refused():
    with pytest.raises(ShapeError, match="node 2 is reached by no pointer"):
        DraftTree.from_sglang([1, 2, 3], [1, -1, -1], [-1, -1, -1])
    with pytest.raises(ShapeError, match="reach node 1 twice"):
        DraftTree.from_sglang([1, 2, 3], [1, 1, -1], [-1, 2, -1])
    with pytest.raises(ShapeError, match="has no parents"):
        DraftTree.from_ddtree({"node_token_ids": []})
    with pytest.raises(ShapeError, match="node_depths contradict"):
        DraftTree.from_ddtree({"node_token_ids": [4], "parents": [-1, 0], "node_depths": [0]})


def test_repr_is_one_line_without_addresses():
    tree = DraftTree.from_parents([1, 2, 3], [-1, 0, 1])
    assert repr(tree) == "DraftTree(num_nodes=3, max_depth=2)"
    assert "2" in str(tree)
    assert set(tree._repr_mimebundle_()) == {"image/svg+xml", "text/plain"}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(65, 200))
def test_packing_over_several_words(seed, num_nodes):
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(max(0, i - 5), i)) for i in range(1, num_nodes))]  # deep trees
    tree = DraftTree.from_parents(list(range(num_nodes)), parents)
    np.testing.assert_array_equal(tree.visible, reachable(parents))
    for node, words in enumerate(tree.visible_words.tolist()):
        bits = [word >> bit & 1 for word in words for bit in range(64)]
        assert bits[:num_nodes] == tree.visible[node].astype(int).tolist()
        assert not any(bits[num_nodes:])


def test_a_walk_by_pointers_is_a_walk_by_parents():
    rng = np.random.default_rng(0)
    for _ in range(200):
        num_nodes = int(rng.integers(1, 40))
        parents = [-1, *(int(rng.integers(0, i)) for i in range(1, num_nodes))]
        tree = DraftTree.from_parents(rng.permutation(num_nodes), parents)
        choices = tree.token_ids[rng.integers(0, num_nodes, num_nodes)]
        _, first, sibling = tree.to_sglang()
        path, child = [0], int(first[0])
        while child != -1:
            if tree.token_ids[child] == choices[path[-1]]:
                path.append(child)
                child = int(first[child])
            else:
                child = int(sibling[child])
        acceptance = accept(tree, choices)
        assert acceptance.accepted.tolist() == path
        assert acceptance.bonus_id == choices[path[-1]]


def test_children_in_another_order_are_the_same_tree():
    """SGLang may link a sibling with a lower node number behind a higher one."""
    tree = DraftTree.from_sglang([7, 8, 9], [2, -1, -1], [-1, -1, 1])
    assert tree.parents.tolist() == [-1, 0, 0]
    assert tree.to_sglang()[1].tolist() == [1, -1, -1]


def test_nothing_can_change_a_tree():
    token_ids, parents = np.array([5, 6, 7], dtype=np.int32), np.array([-1, 0, 1], dtype=np.int32)
    tree = DraftTree.from_parents(token_ids, parents, [0, -1, -2])
    token_ids[1], parents[2] = 99, 0
    assert tree.token_ids.tolist() == [5, 6, 7]
    assert tree.parents.tolist() == [-1, 0, 1]
    for name in ("token_ids", "parents", "scores", "draft_log_probs", "depths", "visible", "visible_words"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(tree, name)[0] = 0


def test_with_root_changes_the_root_alone():
    tree = DraftTree.from_parents([5, 6, 7], [-1, 0, 1], [0, -1, -2])
    other = tree.with_root(9)
    assert other.token_ids.tolist() == [9, 6, 7]
    assert tree.token_ids.tolist() == [5, 6, 7]
    assert other.scores.tolist() == tree.scores.tolist()


def test_json_keeps_every_field_and_has_no_infinity():
    tree = DraftTree(
        np.array([5, 6, 7]),
        np.array([-1, 0, 0]),
        scores=np.array([0, -0.5, -np.inf]),
        ranks=np.array([0, 0, 1]),
        draft_log_probs=np.array([0, -0.5, -np.inf]),
    )
    text = json.dumps(tree.to_json(), allow_nan=False)
    back = DraftTree.from_json(json.loads(text))
    for name in ("token_ids", "parents", "scores", "ranks", "draft_log_probs", "depths"):
        np.testing.assert_array_equal(getattr(back, name), getattr(tree, name))
        assert getattr(back, name).dtype == getattr(tree, name).dtype


def test_the_reference_form_keeps_root_and_scores():
    tree = DraftTree.from_parents([5, 6, 7], [-1, 0, 1], [0, -1, -2])
    data = tree.to_ddtree()
    assert data == {
        "root_token": 5,
        "node_token_ids": [6, 7],
        "node_depths": [1, 2],
        "parents": [-1, 0, 1],
        "node_scores": [-1.0, -3.0],
    }
    back = DraftTree.from_ddtree(data, root_id=99)  # the data's own root goes first
    assert back.token_ids.tolist() == [5, 6, 7]
    assert back.scores.tolist() == [0.0, -1.0, -3.0]
    del data["root_token"]
    assert DraftTree.from_ddtree(data, root_id=99).token_ids[0] == 99
    assert DraftTree.from_ddtree({"node_token_ids": [], "parents": [-1]}).num_nodes == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DraftTree.from_parents([1, 2], [-1, 2**32]),
            "node 1: parents is 4294967296, which is no int32",
        ),
        (lambda: DraftTree.from_parents([1, 2**31], [-1, 0]), "node 1: token_ids is 2147483648"),
        (lambda: DraftTree.from_parents([1, -1], [-1, 0]), "node 1: token id -1; token ids are 0 or more"),
        (lambda: DraftTree.from_parents([-2], [-1]), "node 0: token id -2"),
        (
            lambda: DraftTree.from_parents([1, 2], [-1, 0], [0.0]),
            r"log_probs has shape \[1\] but the tree has 2",
        ),
        (lambda: DraftTree([1, 2], [-1, 0], ranks=[0.0, 1.0]), "ranks has dtype float64"),
        (lambda: DraftTree([1, 2], [-1, 0], scores=[0.0]), r"scores has shape \[1\]"),
        (
            lambda: DraftTree([1, 2, 3], [-1, 0, 1], sampled_from=[[0.5, 0.5]]),
            r"sampled_from has shape \[1, 2\] but the tree is 2 deep",
        ),
        (lambda: DraftTree.root_only(1).path(1), "node 1 is not in the tree; its nodes are 0 to 0"),
        (lambda: DraftTree.root_only(1).path(-1), "node -1 is not in the tree"),
        (lambda: DraftTree.from_sglang([1, 2], [1], [-1, -1]), "retrieve_next_token has 1 and"),
        (
            lambda: DraftTree.from_sglang([1, 2], [7, -1], [-1, -1]),
            "its pointers lead to node 7, but a child is",
        ),
        (lambda: DraftTree.from_sglang([1, 2], [0, -1], [-1, -1]), "its pointers lead to node 0"),
        (lambda: DraftTree.from_sglang([1, 2, 3], [2, -1, 1], [-1, -1, -1]), "node 1: parent 2 >= 1"),
        (lambda: DraftTree.from_json([1]), "the tree is a list; it must be a JSON object"),
        (lambda: DraftTree.from_json({"token_ids": [1]}), "the tree has no parents"),
        (lambda: DraftTree.from_json({"token_ids": "ab", "parents": [-1]}), "token_ids has dtype"),
        (
            lambda: DraftTree.from_json({"token_ids": 3, "parents": [-1]}),
            "token_ids must be a list of numbers",
        ),
        (lambda: DraftTree.from_json({"token_ids": [[1], 2], "parents": [-1]}), "token_ids must be a list"),
        (
            lambda: DraftTree.from_json({"token_ids": [1, 2], "parents": [-1, 0], "depths": [0, 2]}),
            r"depths contradict parents: they are \[0, 2\] but parents mean \[0, 1\]",
        ),
    ],
    ids=range(20),
)
def test_more_refusals(make, message):
    with pytest.raises(ShapeError, match=message):
        make()

"""DraftTree: invariants, visibility, packing, drawing order, converters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdnb.arrays import pack_visible, unpack_visible
from kdnb.errors import ShapeError
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

"""Trees, masks, rounds and runs as text."""

import numpy as np
import pytest

from kdnb.arrays import pack_visible
from kdnb.errors import ShapeError
from kdnb.tree import DraftTree
from kdnb.view.glyphs import pad, shorten, text_width
from kdnb.view.layout import hidden_below, tidy_rows
from kdnb.view.tables import rounds_table, run_table
from kdnb.view.text import draw_mask, draw_round, draw_strip, draw_tree
from tests.support.traces import TREE, full_round, light_round, small_run, token_text

DRAWN = """\
   node   draft    path  tree → target's choice
*     0                  root → A
*     1   0.500   0.500  ┡━ A → D
      3   0.250   0.125  │  ┠─ C → t0
*     4   0.200   0.100  │  ┗━ D → bon (bonus)
      2   0.250   0.250  └─ B → E
      5   0.250   0.062     └─ E → t1"""


def test_a_tree_as_it_stands_in_a_terminal():
    round_ = light_round()
    assert draw_tree(TREE, token_text, round_.accepted, round_.next_ids) == DRAWN


def test_a_bare_tree_shows_ids_and_what_is_known():
    tree = DraftTree.from_parents([-1, 5, 6], [-1, 0, 1])
    assert draw_tree(tree) == "   node  tree\n      0  ?\n      1  └─ 5\n      2     └─ 6"
    assert "0.500" in draw_tree(TREE)
    assert "*" not in draw_tree(TREE)


def test_ascii_only_is_ascii():
    text = draw_round(full_round(), lambda _: "größe→", ascii_only=True)
    assert text.isascii()
    assert "#= " in text


def test_every_node_has_a_line_and_parents_stand_above_their_children():
    rng = np.random.default_rng(0)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, 60))]
    tree = DraftTree.from_parents(range(100, 160), parents)
    lines = draw_tree(tree).splitlines()[1:]
    order = [int(line[1:7]) for line in lines]
    assert sorted(order) == list(range(60))
    assert all(order.index(parents[node]) < order.index(node) for node in range(1, 60))
    indent = {int(line[1:7]): len(line.rstrip("0123456789")) for line in lines}
    for node in range(1, 60):
        assert indent[node] == indent[parents[node]] + 3


def test_a_wide_tree_keeps_the_path_and_says_what_is_left_out():
    parents = [-1] + [0] * 1000 + list(range(1, 24))
    tree = DraftTree.from_parents(range(1024), parents)
    text = draw_tree(tree, accepted=[0, 23, 1023], max_rows=20)
    lines = text.splitlines()
    assert len(lines) == 21
    shown = [int(line[1:7]) for line in lines[1:]]
    assert {0, 1, 2, 23, 1023} <= set(shown)
    hidden = [int(line.split("(+")[1].split()[0]) for line in lines if "more below" in line]
    assert sum(hidden) == 1024 - 20


def test_a_deep_tree_does_not_run_off_to_the_right():
    chain = DraftTree.from_parents(range(1000), range(-1, 999))
    lines = draw_tree(chain, max_rows=1000).splitlines()
    assert len(lines) == 1001
    assert max(map(len, lines)) < 100
    assert lines[-1].endswith("999")


def test_colour_only_when_asked():
    assert "\x1b" not in draw_round(full_round(), token_text)
    assert "\x1b[1;32m" in draw_round(full_round(), token_text, color=True)


def test_accepted_must_be_nodes_of_the_tree():
    with pytest.raises(ShapeError, match="accepted holds node 6 but the tree has nodes 0 to 5"):
        draw_tree(TREE, accepted=[0, 6])


MASK = """\
*  0 ██ . . . . .
*  1 ████ . . . .
   2 ██ .██ . . .
   3 ████ .██ . .
*  4 ████ . .██ .
   5 ██ .██ . .██"""


def test_the_mask_cell_by_cell():
    assert draw_mask(TREE, [0, 1, 4]) == MASK


def test_a_bigger_mask_has_two_rows_a_line():
    tree = DraftTree.from_parents(range(31), [-1, *([0] * 30)])
    lines = draw_mask(tree).splitlines()
    assert len(lines) == 16
    body = [line.split("|")[1] for line in lines]
    for node in range(31):
        for other in range(31):
            sign = body[node // 2][other]
            seen = sign == "█" or sign == ("▀" if node % 2 == 0 else "▄")
            assert seen == bool(tree.visible[node, other]), (node, other)


def test_a_huge_mask_is_cut():
    tree = DraftTree.from_parents(range(300), [-1, *([0] * 299)])
    lines = draw_mask(tree).splitlines()
    assert len(lines) == 65
    assert "the first 128 of 300 nodes" in lines[-1]


def test_a_round_shows_the_engines_own_mask():
    visible = TREE.visible.copy()
    visible[5, 1] = True
    text = draw_round(full_round(visible_words=pack_visible(visible)), token_text)
    assert "1 cells are not the tree's" in text
    assert "   5 ██████ . .██" in text
    assert "are not the tree's" not in draw_round(full_round(), token_text)


def test_a_round_says_what_was_kept_and_emitted():
    text = draw_round(full_round(), token_text)
    assert "drafted 5, accepted 2: A D" in text
    assert "emitted 3: A D bon" in text
    assert "window rows 0, 1, 4 are kept as rows 20 to 22" in text
    assert "verify 0.10" in text
    assert "verify" not in draw_round(full_round(), token_text, times=False)
    cut = light_round(emitted=np.array([10], dtype=np.int32))
    assert "emitted 1: A (cut)" in draw_round(cut, token_text)


def test_the_strip_groups_tokens_by_round():
    assert draw_strip(small_run().rounds, token_text) == "|ADbon|root|"
    assert draw_strip(small_run().rounds) == "|10 13 9|7|"
    assert draw_strip([], token_text) == ""
    lines = draw_strip([light_round()] * 40, token_text, width=30).splitlines()
    assert max(map(len, lines)) <= 30
    assert "".join(line.strip() for line in lines) == "|" + "ADbon|" * 40


def test_tables():
    table = rounds_table(small_run()).splitlines()
    assert table[0].split() == ["round", "prefix_len", "drafted", "depth", "accepted", "emitted", "ms"]
    assert table[1].split() == ["0", "20", "5", "2", "█", "2", "3", "0.11"]
    assert "ms" not in rounds_table(small_run(), times=False)
    assert "(1 more rounds)" in rounds_table(small_run(), max_rows=1)
    assert "2000 tokens/s" in run_table(small_run())
    assert "tokens/s" not in run_table(small_run(), times=False)
    assert "1 (prompt and 0 rounds)" in run_table(small_run(rounds=[]))


def test_width_counts_columns_not_characters():
    assert text_width("日本") == 4
    assert text_width("é") == 1
    assert text_width("e\u0301") == 1
    assert pad("日", 4) == "日  "
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("日本語", 5) == "日本…"
    assert shorten("abc", 3) == "abc"


def test_rows_of_one_depth_never_overlap():
    rng = np.random.default_rng(1)
    for size in (1, 2, 40, 200):
        parents = [-1, *(int(rng.integers(max(0, node - 9), node)) for node in range(1, size))]
        depths = DraftTree.from_parents(range(size), parents).depths
        rows = np.array(tidy_rows(parents))
        assert rows.min() == 0
        for depth in range(depths.max() + 1):
            own = np.sort(rows[depths == depth])
            assert (np.diff(own) >= 1 - 1e-9).all()


def test_a_parent_stands_beside_the_middle_of_its_children():
    assert tidy_rows([-1, 0, 0, 0]) == [1, 0, 1, 2]
    assert tidy_rows([-1, 0, 1, 2]) == [0, 0, 0, 0]
    assert tidy_rows([-1, 0, 0, 2, 2]) == [0.5, 0, 1, 0.5, 1.5]  # the subtree goes under the leaf's column


def test_hidden_nodes_are_counted_where_they_hang():
    parents = [-1, 0, 0, 1, 2, 4]
    assert hidden_below(parents, (), 6) == [0] * 6
    assert hidden_below(parents, (0, 2, 4), 4) == [0, 1, 0, -1, 1, -1]
    assert hidden_below(parents, (), 1) == [5, -1, -1, -1, -1, -1]

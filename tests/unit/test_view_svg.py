"""The SVG drawings: well-formed, complete, repeatable, legible without colours."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from kdnb.arrays import pack_visible
from kdnb.errors import ShapeError
from kdnb.tree import DraftTree
from kdnb.view import MAX_NODES, bundle
from kdnb.view.svg import round_svg, run_svg, tree_svg
from kdnb.view.svg_parts import DARK, LIGHT
from tests.support.traces import TREE, full_round, light_round, small_run, token_text

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg):
    return ElementTree.fromstring(svg)


def nodes(root):
    return {int(g.get("data-node")): g for g in root.iter(f"{SVG}g") if g.get("data-node")}


def by_class(root, tag, name):
    return [item for item in root.iter(SVG + tag) if name in (item.get("class") or "").split()]


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_round_shows_every_node_with_its_token_and_the_path():
    root = parse(round_svg(full_round(), token_text))
    drawn = nodes(root)
    assert sorted(drawn) == list(range(6))
    for node, group in drawn.items():
        texts = [item.text for item in group.iter(f"{SVG}text")]
        assert token_text(int(TREE.token_ids[node])) in texts
        assert ("kept" in group.get("class").split()) == (node in (0, 1, 4))
    assert len(by_class(root, "path", "kept")) == 2 + 1  # two edges and the mask's cells
    assert len(by_class(root, "path", "edge")) == 5 + 1  # and the bonus token's
    assert len(by_class(root, "path", "agreed")) == 1  # node 5: the target's choice after node 2
    bonus = by_class(root, "g", "bonus")[0]
    assert "bonus token: bon (id 9)" in bonus.find(f"{SVG}title").text


def test_the_path_is_marked_by_more_than_colour():
    root = parse(round_svg(full_round(), token_text))
    drawn = nodes(root)
    line = {node: float(g.find(f"{SVG}rect").get("stroke-width")) for node, g in drawn.items()}
    assert line[1] > line[2]
    edges = by_class(root, "path", "edge")
    kept = [float(e.get("stroke-width")) for e in edges if "kept" in e.get("class").split()]
    others = [float(e.get("stroke-width")) for e in edges if e.get("class") == "edge"]
    assert min(kept) > max(others)


def test_tooltips_say_what_is_known():
    words = nodes(parse(round_svg(full_round(), token_text)))[4].find(f"{SVG}title").text
    for fact in (
        "node 4: D (id 13)",
        "depth 2, parent 1, position 22",
        "rank 1",
        "draft probability 0.200",
        "path probability 0.100",
        "target probability 0.600",
        "goes on with bon (id 9)",
        "accepted",
    ):
        assert fact in words
    bare = nodes(parse(tree_svg(DraftTree.from_parents([1, 2], [-1, 0]))))[1].find(f"{SVG}title").text
    assert bare == "node 1: 2 (id 2)\ndepth 1, parent 0"


def test_it_has_a_name_and_a_description_and_no_script():
    svg = round_svg(full_round(), token_text)
    root = parse(svg)
    assert root.get("role") == "img"
    title_id, desc_id = root.get("aria-labelledby").split()
    assert root.find(f"{SVG}title").get("id") == title_id
    desc = root.find(f"{SVG}desc")
    assert desc.get("id") == desc_id
    assert desc.text == "Accepted path, root first: root A D. Bonus token: bon."
    assert "<script" not in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    other = parse(round_svg(full_round(bonus_id=11), token_text))
    assert other.get("aria-labelledby") != root.get("aria-labelledby")  # two on one page


def test_the_same_round_gives_the_same_text_whatever_the_clock_said():
    a, b = full_round(), full_round(times_us={"draft": 9.0})
    assert round_svg(a, token_text) == round_svg(b, token_text)
    assert "verify" in round_svg(full_round(), token_text, times=True)


def test_the_last_bits_of_a_probability_do_not_show():
    rng = np.random.default_rng(0)
    shaken = replace(
        TREE,
        scores=TREE.scores * (1 + 1e-6 * rng.random(6)),
        draft_log_probs=TREE.draft_log_probs * np.float32(1 + 1e-6),
    )
    assert tree_svg(TREE) == tree_svg(shaken)


@pytest.mark.parametrize("text", ["<b>&\"'", "]]>", "\x00\x1b\x07", "\ufffe\ud800", "日本語" * 30, ""])
def test_any_token_is_escaped(text):
    svg = round_svg(full_round(), lambda _: text)
    svg.encode("utf-8")
    drawn = nodes(parse(svg))
    assert len(drawn) == 6
    token = next(t for t in drawn[1].iter(f"{SVG}text") if t.get("class") == "token")
    if text == "<b>&\"'":
        assert token.text == text
    assert token.text.strip()


def test_the_mask_has_a_cell_for_every_visible_pair():
    cells = {}
    for path in by_class(parse(round_svg(full_round(), token_text)), "path", "cells"):
        for x, y in re.findall(r"M([\d.]+) ([\d.]+)h", path.get("d")):
            cells[int(float(y)), int(float(x))] = "kept" in path.get("class")
    expected = {(int(r), int(c)): r in (0, 1, 4) for r, c in np.argwhere(TREE.visible)}
    assert cells == expected


def test_joined_cells_of_a_big_mask_cover_the_same_pairs():
    rng = np.random.default_rng(2)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, 150))]
    tree = DraftTree.from_parents(range(150), parents)
    seen = np.zeros((150, 150), dtype=bool)
    for path in by_class(parse(tree_svg(tree)), "path", "cells"):
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h", path.get("d")):
            seen[int(y), int(x) : int(x) + int(width)] = True
    np.testing.assert_array_equal(seen, tree.visible)


def test_cells_that_are_not_the_trees_are_red_and_counted():
    visible = TREE.visible.copy()
    visible[5, 1] = True
    visible[3, 3] = False
    svg = round_svg(full_round(visible_words=pack_visible(visible)), token_text)
    wrong = by_class(parse(svg), "path", "wrong")
    assert wrong[0].get("d").count("M") == 2
    assert "red: 2 cells are not the tree&#x27;s".replace("&#x27;", "'") in svg
    assert not by_class(parse(round_svg(full_round(), token_text)), "path", "wrong")


def test_no_two_nodes_overlap():
    rng = np.random.default_rng(4)
    parents = [-1, *(int(rng.integers(max(0, node - 12), node)) for node in range(1, 120))]
    root = parse(tree_svg(DraftTree.from_parents(range(120), parents), lambda i: "x" * (i % 9 + 1)))
    boxes = []
    for group in nodes(root).values():
        rect = group.find(f"{SVG}rect")
        boxes.append([float(rect.get(name)) for name in ("x", "y", "width", "height")])
    for index, (x, y, width, height) in enumerate(boxes):
        for x1, y1, width1, height1 in boxes[:index]:
            apart = x + width <= x1 or x1 + width1 <= x or y + height <= y1 or y1 + height1 <= y
            assert apart


def test_everything_lies_inside_the_picture():
    for svg in (round_svg(full_round(), token_text), run_svg(small_run()), tree_svg(TREE)):
        root = parse(svg)
        _, _, width, height = map(float, root.get("viewBox").split())
        assert width > 20
        assert height > 20
        assert root.get("width") == f"{width:.2f}".rstrip("0").rstrip(".")


def test_a_big_tree_is_drawn_whole_or_as_much_as_asked():
    tree = DraftTree.from_parents(range(1024), [-1, *((node - 1) // 4 for node in range(1, 1024))])
    assert len(nodes(parse(tree_svg(tree)))) == 1024
    few = parse(tree_svg(tree, accepted=[0, 4, 20, 84, 340], max_nodes=30))
    assert len(nodes(few)) == 30
    assert 340 in nodes(few)
    notes = [t.text for t in few.iter(f"{SVG}text") if (t.text or "").startswith("+")]
    assert sum(int(note) for note in notes) == 1024 - 30
    assert len(nodes(parse(bundle(tree)["image/svg+xml"]))) == MAX_NODES
    assert len(bundle(tree)["image/svg+xml"]) < 250_000


def test_a_root_alone():
    alone = light_round(
        tree=DraftTree.root_only(7), accepted=np.array([0]), next_ids=np.array([9]), emitted=np.array([9])
    )
    root = parse(round_svg(alone, token_text))
    assert list(nodes(root)) == [0]
    assert not by_class(root, "path", "cells")
    parse(tree_svg(DraftTree.root_only()))


def test_a_run_shows_its_tokens_round_by_round():
    root = parse(run_svg(small_run()))
    groups = [g for g in root.iter(f"{SVG}g") if g.get("data-round")]
    shown = [[t.text for t in g.iter(f"{SVG}text")] for g in groups]
    assert shown == [["A", "D", "bon"], ["root"]]
    assert "round 0: 2 of 5 drafts accepted, 3 emitted" in root.find(f"{SVG}desc").text
    cut = parse(run_svg(small_run(rounds=[light_round(emitted=np.array([10], dtype=np.int32))])))
    assert len(by_class(cut, "g", "cut")) == 2
    parse(run_svg(small_run(rounds=[])))


def test_accepted_must_be_nodes_of_the_tree():
    with pytest.raises(ShapeError, match="accepted holds node 9"):
        tree_svg(TREE, accepted=[0, 9])


def test_colours_can_be_set_from_outside_and_follow_the_page():
    svg = tree_svg(TREE)
    for name, color in LIGHT.items():
        assert f"var(--kdnb-{name},{color})" in svg
    dark = svg.split("prefers-color-scheme:dark")[1]
    for name, color in DARK.items():
        assert f"var(--kdnb-{name},{color})" in dark
    assert set(LIGHT) == set(DARK)


def test_contrast_on_the_page_and_in_the_nodes():
    white, black = "#ffffff", "#111418"
    for palette, page in ((LIGHT, white), (DARK, black)):
        assert contrast(palette["ink"], page) > 4.5
        for fill, ink in (("node", "node-ink"), ("kept", "kept-ink"), ("bonus", "bonus-ink")):
            assert contrast(palette[fill], palette[ink]) > 4.5
        for line in ("line", "kept", "bonus-line", "wrong"):
            assert contrast(palette[line], page) > 2.4
    for name in ("ink", "kept", "bonus-line", "line"):  # a page that does not say it is dark
        assert contrast(LIGHT[name], black) > 3

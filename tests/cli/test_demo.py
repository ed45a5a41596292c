"""`kdnb demo`."""

import json
import re


def test_demo_shows_tree_mask_path_text_and_comparison(kdnb):
    result = kdnb("demo", "--max-new-tokens", 60)
    assert result.status == 0
    out = result.out
    assert out.index("target's choice") < out.index("mask:") < out.index("emitted") < out.index("same tokens")
    assert "*     0" in out
    assert "(bonus)" in out
    assert "\x1b" not in out
    assert re.search(r"new tokens +60 +60\n", out)
    plain, trees = map(int, re.search(r"target forwards +(\d+) +(\d+)\n", out).groups())
    assert plain == 60
    assert trees < 40
    assert re.search(r"same tokens +yes\n", out)


def test_demo_streams_what_it_decodes(kdnb):
    result = kdnb("demo", "--max-new-tokens", 40)
    data = json.loads(kdnb("demo", "--max-new-tokens", 40, "--json").out)
    assert data["prompt"] + data["text"] in result.out


def test_demo_as_json(kdnb, tmp_path):
    result = kdnb("demo", "--max-new-tokens", 30, "--node-budget", 8, "--json")
    data = json.loads(result.out)
    assert data["same_tokens"] is True
    assert data["plain"]["num_rounds"] == 29
    assert data["ddtree"]["mean_emitted_per_round"] > 2
    assert len(data["round"]["parents"]) == 9
    path = tmp_path / "demo.json"
    both = kdnb("demo", "--max-new-tokens", 10, "--json", path)
    assert "same tokens" in both.out
    assert json.loads(path.read_text())["same_tokens"] is True


def test_a_demo_of_one_token_has_no_round(kdnb):
    result = kdnb("demo", "--max-new-tokens", 1)
    assert result.status == 0
    data = json.loads(kdnb("demo", "--max-new-tokens", 1, "--json").out)
    assert "round" not in data
    assert data["ddtree"]["target_forwards"] == 1

"""`kdnb view`, `diff` and `export`: what can be done with a trace file."""

import json
import os
import select
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from kdnb.cli import view as view_command
from kdnb.run import Run
from kdnb.tree import DraftTree
from kdnb.view.compare import first_difference
from tests.support.traces import light_round, small_run


def test_view_prints_all_rounds_into_a_pipe(kdnb, traces):
    run = Run.load(traces / "tree.json")
    out = kdnb("view", traces / "tree.json").out
    for index in range(len(run.rounds)):
        assert f"round {index} (0 to {len(run.rounds) - 1})" in out
    assert out.count("mask:") == len(run.rounds)
    assert "tokens             24 (stopped by length)" in out
    assert "·" in out  # a space, known without the tokenizer
    assert "\x1b" not in out
    assert "mask:" not in kdnb("view", traces / "tree.json", "--no-mask").out


def test_view_one_round(kdnb, traces):
    out = kdnb("view", traces / "tree.json", "--round", 1).out
    assert "round 1 (" in out
    assert "round 0 (" not in out
    result = kdnb("view", traces / "tree.json", "--round", 99)
    assert result.status == 2
    assert "the trace has rounds 0 to" in result.err
    data = json.loads(kdnb("view", traces / "tree.json", "--round", 1, "--json").out)
    assert data == [Run.load(traces / "tree.json").rounds[1].to_json()]


def test_view_steps_by_keys(kdnb, traces, monkeypatch):
    pressed = iter(["n", "n", "p", "m", "\x1b[C", "p", "p", "p", "q"])
    pages = []
    monkeypatch.setattr(view_command, "_is_interactive", lambda: True)
    monkeypatch.setattr(view_command, "_page", lambda run, index, mask: pages.append((index, mask)) or "")
    monkeypatch.setattr("click.getchar", lambda: next(pressed))
    monkeypatch.setattr("click.clear", lambda: None)
    assert kdnb("view", traces / "tree.json").status == 0
    on, off = True, False
    expected = [(0, on), (1, on), (2, on), (1, on), (1, off), (2, off), (1, off), (0, off), (0, off)]
    assert pages == expected


def test_view_in_a_real_terminal(traces):
    import pty

    outer, inner = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "kdnb", "view", str(traces / "tree.json")],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**environment, "TERM": "xterm"},
    )
    os.close(inner)

    def read_until(*words: bytes, key: bytes = b"") -> bytes:
        """Press a key (again, if it came before the program listened) and read until all words came."""
        seen = b""
        end = time.monotonic() + 20
        while not all(word in seen for word in words):
            assert time.monotonic() < end, seen
            if select.select([outer], [], [], 0.5)[0]:
                seen += os.read(outer, 65536)
            elif key and b"round" not in seen:
                os.write(outer, key)
        return seen

    try:
        read_until(b"round 0 (", b"q quit")
        page = read_until(b"round 1 (", b"q quit", key=b"n")
        assert b"\x1b[1;32m" in page  # colours, since it is a terminal
        while process.poll() is None:
            os.write(outer, b"q")
            time.sleep(0.05)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)


@pytest.mark.parametrize("command", ["view", "diff", "export"])
def test_files_that_are_no_traces(kdnb, tmp_path, traces, command):
    path = tmp_path / "x.json"
    more = {"view": [], "diff": [traces / "tree.json"], "export": ["-o", tmp_path / "x.svg"]}[command]
    for text, message in (
        ("{", "x.json' is not JSON"),
        ("[]", "it must be a JSON object"),
        ("{}", "the trace has no prompt_ids, no token_ids, no rounds"),
        ('{"format_version": 9}', "format_version 9 but this kdnb reads 1"),
    ):
        path.write_text(text)
        result = kdnb(command, path, *more)
        assert result.status == 2
        assert message in result.err
        assert result.err.count("\n") == 1
        assert result.out == ""
    path.unlink()
    assert "cannot be read: No such file" in kdnb(command, path, *more).err


def save(tmp_path, name, run):
    run.save(tmp_path / name)
    return tmp_path / name


def changed(**changes):
    return small_run(rounds=[light_round(**changes), small_run().rounds[1]])


def test_diff_of_equal_runs(kdnb, tmp_path):
    a = save(tmp_path, "a.json", small_run())
    b = save(
        tmp_path, "b.json", small_run(wall_us=9.0, rounds=[light_round(times_us={}), *small_run().rounds[1:]])
    )
    result = kdnb("diff", a, b)
    assert (result.status, result.out) == (0, "equal\n")
    assert json.loads(kdnb("diff", a, b, "--json").out) == {"equal": True, "difference": None}


TREE = light_round().tree


def tree_with(**changes):
    return DraftTree(
        **{"token_ids": TREE.token_ids, "parents": TREE.parents, "scores": TREE.scores, **changes}
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            changed(tree=tree_with(token_ids=[7, 10, 11, 12, 13, 15])),
            "round 0, node 5: token_ids is 14 (E) in a.json, 15 (t15) in b.json",
        ),
        (
            changed(tree=tree_with(parents=[-1, 0, 0, 1, 1, 1])),
            "round 0, node 5: parents is 2 in a.json, 1 in b.json",
        ),
        (
            changed(tree=tree_with(scores=TREE.scores - [0, 0, 0, 0.01, 0, 0])),
            "round 0, node 3: scores is -2.079",
        ),
        (
            changed(next_ids=light_round().next_ids + [0, 0, 0, 0, 0, 1]),
            "round 0, node 5: next_ids is 1 (t1) in a.json, 2 (t2) in b.json",
        ),
        (changed(accepted=[0, 1]), "round 0, node 4: accepted is 4 in a.json, not there in b.json"),
        (changed(accepted=[0, 2, 5]), "round 0, node 1: accepted is 1 in a.json, 2 in b.json"),
        (changed(bonus_id=11), "round 0, bonus_id is 9 (bon) in a.json, 11 (B) in b.json"),
        (changed(prefix_len=21), "round 0, prefix_len is 20 in a.json, 21 in b.json"),
        (
            small_run(rounds=small_run().rounds[:1]),
            "the first 1 rounds are equal, but a.json has 2 rounds and b.json has 1",
        ),
        (
            small_run(prompt_ids=small_run().prompt_ids[:-1]),
            "prompt_ids[19] is 19 (t19) in a.json, not there",
        ),
        (
            small_run(token_ids=small_run().token_ids + [0, 0, 0, 0, 1]),
            "token_ids[4] is 7 (root) in a.json, 8 (t8) in b.json",
        ),
    ],
)
def test_diff_names_the_first_round_and_node(kdnb, tmp_path, monkeypatch, other, message):
    for step in other.rounds:
        object.__setattr__(step, "accepted", np.asarray(step.accepted, dtype=np.int32))
    save(tmp_path, "a.json", small_run())
    save(tmp_path, "b.json", other)
    monkeypatch.chdir(tmp_path)
    result = kdnb("diff", "a.json", "b.json")
    assert result.status == 1
    assert message in result.out
    as_json = kdnb("diff", "a.json", "b.json", "--json")
    assert as_json.status == 1
    data = json.loads(as_json.out)
    assert data["equal"] is False
    found = first_difference(small_run(), other)
    assert (data["difference"]["round"], data["difference"]["node"]) == (found.round, found.node)


def test_diff_of_scores_forgives_the_last_bits_and_minus_infinity():
    scores = TREE.scores.copy()
    scores[5] = -np.inf
    a = changed(tree=tree_with(scores=scores))
    b = changed(tree=tree_with(scores=scores + 1e-6))
    assert first_difference(a, b) is None
    assert first_difference(a, changed()).node == 5


def test_diff_of_what_was_emitted_only(kdnb, traces):
    tree, plain = traces / "tree.json", traces / "plain.json"
    whole = kdnb("diff", tree, plain)
    assert whole.status == 1
    assert "round 0, node 1: token_ids is" in whole.out
    assert "not there in" in whole.out
    assert kdnb("diff", tree, plain, "--tokens").status == 0


def test_export_a_round_as_svg(kdnb, traces, tmp_path):
    path = tmp_path / "x.svg"
    assert kdnb("export", traces / "tree.json", "-o", path, "--round", 1).status == 0
    root = ElementTree.parse(path).getroot()
    nodes = [g.get("data-node") for g in root.iter() if g.get("data-node")]
    assert len(nodes) == 17
    run = Run.load(traces / "tree.json")
    best = max(range(len(run.rounds)), key=lambda index: run.rounds[index].num_accepted)
    assert f"wrote {path}: round {best}" in kdnb("export", traces / "tree.json", "-o", path).out
    kdnb("export", traces / "tree.json", "-o", path, "--round", "all")
    whole = ElementTree.parse(path).getroot()
    assert len([g for g in whole.iter() if g.get("data-round")]) == len(run.rounds)


def test_export_as_text_and_as_json(kdnb, traces, tmp_path):
    path = tmp_path / "x.txt"
    data = json.loads(kdnb("export", traces / "tree.json", "-o", path, "--json").out)
    text = path.read_text(encoding="utf-8")
    assert data == {"output": str(path), "shows": "all rounds", "bytes": len(text.encode()) - 1}
    assert text.count("window rows") == len(Run.load(traces / "tree.json").rounds)


def test_export_a_bare_tree(kdnb, tmp_path):
    (tmp_path / "tree.json").write_text(json.dumps(TREE.to_json()))
    assert kdnb("export", tmp_path / "tree.json", "-o", tmp_path / "x.svg").out.endswith(": the tree\n")
    ElementTree.parse(tmp_path / "x.svg")
    (tmp_path / "tree.json").write_text('{"token_ids": [1, 2], "parents": [-1, 4]}')
    result = kdnb("export", tmp_path / "tree.json", "-o", tmp_path / "x.svg")
    assert result.status == 2
    assert "node 1: parent 4 >= 1" in result.err


@pytest.mark.parametrize(
    ("output", "more", "message"),
    [
        ("x.png", (), "PNG comes with the inspector, which this version has not; use .svg or .txt"),
        ("x.HTML", (), "HTML comes with the inspector"),
        ("x.pdf", (), "must end in .svg or .txt"),
        ("x.svg", ("--round", "77"), "'77' is no round; use 0 to"),
        ("x.svg", ("--round", "first"), "'first' is no round"),
        ("no/such/folder/x.svg", (), "cannot be written"),
    ],
)
def test_export_refuses_with_status_2(kdnb, traces, tmp_path, output, more, message):
    result = kdnb("export", traces / "tree.json", "-o", tmp_path / output, *more)
    assert result.status == 2
    assert message in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_broken_pipe_is_quiet(traces):
    command = f'"{sys.executable}" -m kdnb view "{traces / "tree.json"}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("tokens")
    assert done.stderr == ""


def test_a_terminal_without_line_drawing_gets_ascii(traces):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "kdnb", "view", str(traces / "tree.json"), "--round", "0"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert done.stdout.isascii()
    assert b"#= " in done.stdout

"""A run: its summary, its file, and what is said about broken files."""

import json

import numpy as np
import pytest

import kdnb
from kdnb.errors import TraceError
from kdnb.run import Run, write_whole
from tests.support.traces import full_round, light_round, small_run


def test_summary_by_hand():
    summary = small_run().summary()
    assert summary["num_tokens"] == 5
    assert summary["num_rounds"] == 2
    assert summary["target_forwards"] == 3
    assert summary["mean_emitted_per_round"] == 2.0
    assert summary["mean_accepted_per_round"] == 1.0
    assert summary["expected_accepted_per_round"] == pytest.approx((0.5 + 0.25 + 0.125 + 0.1 + 0.0625) / 2)
    assert summary["accepted_by_depth"] == [0.5, 0.5]
    assert summary["min_gap"] == 0.5
    assert summary["stop_reason"] == "length"
    assert summary["times_us"]["verify"] == 200.25
    assert (summary["prefill_us"], summary["wall_us"]) == (1000.0, 2500.0)
    assert summary["tokens_per_second"] == pytest.approx(2000.0)


def test_summary_leaves_out_what_is_not_known():
    run = small_run(rounds=[], prefill_us=None, prefill_min_gap=None, wall_us=None)
    assert run.summary() == {
        "num_tokens": 5,
        "num_rounds": 0,
        "target_forwards": 1,
        "stop_reason": "length",
    }


def test_an_infinite_gap_is_no_smallest_gap():
    run = small_run(rounds=[light_round(min_gap=np.inf)], prefill_min_gap=np.inf)
    assert "min_gap" not in run.summary()
    json.dumps(run.to_json(), allow_nan=False)


def test_a_cut_last_round_counts_whole_in_the_mean():
    run = small_run(rounds=[light_round(emitted=np.array([10], dtype=np.int32))])
    assert run.summary()["mean_emitted_per_round"] == 3.0


def test_save_and_load(tmp_path):
    run = small_run(rounds=[full_round()])
    path = tmp_path / "run.json"
    run.save(path)
    back = Run.load(path)
    assert back.to_json() == run.to_json()
    assert back.text == "root A D bon root"
    assert back.token_ids.dtype == np.int32
    assert back.settings == {"target": "toy", "node_budget": 5}
    assert back.token_text(13) == "D"  # known without the tokenizer
    assert back.token_text(99999) == "99999"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_the_json_of_generate():
    target = kdnb.load_target("golden")
    run = kdnb.generate(
        target, "def f(", kdnb.load_drafter("golden", target), max_new_tokens=12, stop_ids=(), trace="full"
    )
    data = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert {"prompt_ids", "token_ids", "text", "rounds", "summary", "settings"} <= set(data)
    assert data["format_version"] == 1
    assert data["prompt_ids"] == list(b"def f(")
    assert data["text"] == bytes(data["token_ids"]).decode()
    assert Run.from_json(data).to_json() == data
    assert data["token_texts"]["32"] == "·"


def test_without_a_tokenizer_the_text_is_absent():
    run = small_run(tokenizer=None)
    assert run.text is None
    assert run.to_json()["text"] is None
    assert "token_texts" not in run.to_json()
    assert run.token_text(13) == "13"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 7}, "the trace has format_version 7 but this kdnb reads 1"),
        ({"rounds": {}}, "rounds has type dict; it must be a list"),
        ({"rounds": [3]}, "round 0: the round has type int"),
        ({"prompt_ids": [1.5]}, "prompt_ids must be a list of whole numbers"),
        ({"token_ids": None}, "token_ids must be a list of whole numbers"),
        ({"text": 3}, "text has type int; it must be a string"),
        ({"summary": []}, "summary has type list; it must be a JSON object"),
        ({"settings": 1}, "settings has type int; it must be a JSON object"),
        ({"summary": {"stop_reason": "tired"}}, "stop_reason is 'tired'; it must be one of stop_id"),
        ({"summary": {"wall_us": "long"}}, "wall_us must be a number"),
    ],
)
def test_broken_runs_are_described(change, message):
    with pytest.raises(TraceError) as caught:
        Run.from_json({**small_run().to_json(), **change})
    assert message in str(caught.value)


def test_a_broken_round_is_named_by_its_index(tmp_path):
    data = small_run().to_json()
    data["rounds"][1]["parents"] = [-1, 5]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(TraceError, match=r"bad\.json': round 1: parents has shape \[2\] but the tree has 1"):
        Run.load(path)


def test_missing_keys_are_listed():
    with pytest.raises(TraceError, match="the trace has no prompt_ids, no token_ids, no rounds"):
        Run.from_json({"hello": 1})


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, "\udcff"])
def test_files_that_are_no_json(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError, match=r"x\.json' is not JSON"):
        Run.load(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        Run.load(tmp_path / "nothing.json")
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        small_run().save(tmp_path / "no" / "such" / "folder.json")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_one_line_repr_and_short_table():
    run = small_run()
    assert repr(run) == "Run(num_tokens=5, num_rounds=2, stop_reason='length')"
    text = str(run)
    assert "5 (stopped by length)" in text
    assert "2.00" in text
    assert len(text.splitlines()) < 12


def test_a_notebook_gets_a_picture_and_words_that_no_clock_changes():
    bundle = small_run()._repr_mimebundle_()
    assert bundle["image/svg+xml"].startswith("<svg")
    slow = small_run(wall_us=9e9, prefill_us=1.0, rounds=[light_round(times_us={"draft": 5e5})])
    fast = small_run(wall_us=1.0, prefill_us=2.0, rounds=[light_round(times_us={"draft": 1.0})])
    assert slow._repr_mimebundle_() == fast._repr_mimebundle_()
    assert light_round()._repr_mimebundle_()["text/plain"].count("\n") > 6

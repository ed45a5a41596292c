"""`kdnb generate`."""

import json
import sys

import pytest

import kdnb as package
from kdnb.cli.stream import Streamer, safe

PROMPT = "def read(self, size):\n\tif size"
KEYS = {"prompt_ids", "token_ids", "text", "rounds", "summary"}
ROUND_KEYS = {"prefix_len", "token_ids", "parents", "depths", "scores", "next_ids", "accepted", "bonus_id"}


def test_the_json_on_standard_output_is_pure_and_complete(kdnb):
    result = kdnb("generate", "--prompt", PROMPT, "--max-new-tokens", 20, "--stop-ids", "none", "--json")
    assert result.status == 0
    data = json.loads(result.out)
    assert set(data) >= KEYS
    assert all(set(step) >= ROUND_KEYS | {"times_us"} for step in data["rounds"])
    assert len(data["token_ids"]) == 20
    assert data["summary"]["num_tokens"] == 20
    again = package.generate(package.load_target("tiny"), PROMPT, max_new_tokens=20, stop_ids=())
    assert data["token_ids"] == again.token_ids.tolist()
    assert data["text"] == again.text


def test_ids_instead_of_text_and_a_file_instead_of_standard_output(kdnb, tmp_path):
    path = tmp_path / "run.json"
    ids = ",".join(str(byte) for byte in PROMPT.encode())
    result = kdnb("generate", "--prompt-ids", ids, "--max-new-tokens", 12, "--json", path)
    data = json.loads(path.read_text())
    assert result.out.rstrip("\n") == data["text"]
    assert "target forwards" in result.err
    assert "tokens/s" in result.err


def test_drafter_policy_and_sampling_change_the_rounds_but_plain_decoding_gives_the_same_text(kdnb):
    common = ("generate", "--prompt", PROMPT, "--max-new-tokens", 24, "--stop-ids", "none", "--json", "-")
    sampling = ("--temperature", 0.8, "--top-k", 20, "--top-p", 0.95, "--seed", 3)
    plain = json.loads(kdnb(*common, *sampling, "--drafter", "none").out)
    tree = json.loads(kdnb(*common, *sampling, "--node-budget", 8).out)
    chain = json.loads(kdnb(*common, *sampling, "--policy", "kdnb.policies:Chain", "--trace", "full").out)
    ngram = json.loads(kdnb(*common, *sampling, "--drafter", "kdnb.drafters:NGram").out)
    texts = {run["text"] for run in (plain, tree, chain, ngram)}
    assert len(texts) == 1
    assert all(len(step["token_ids"]) == 1 for step in plain["rounds"])
    assert max(len(step["token_ids"]) for step in tree["rounds"]) == 9
    assert chain["rounds"][0]["parents"] == list(range(-1, 7))
    assert "target_log_prob" in chain["rounds"][0]
    greedy = json.loads(kdnb(*common).out)
    assert greedy["text"] != plain["text"]


def test_a_drafter_from_a_module_in_the_current_folder(kdnb, tmp_path, monkeypatch):
    code = (
        "from kdnb.drafters import NGram\n"
        "def make(target):\n    assert target.config.vocab_size == 260\n    return NGram()\n"
        "READY = NGram()\nNOTHING = 3\n"
    )
    (tmp_path / "my_drafter_of_this_test.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    common = ("generate", "--prompt", PROMPT, "--max-new-tokens", 5, "--json")
    for attribute in ("make", "READY"):
        result = kdnb(*common, "-", "--drafter", f"my_drafter_of_this_test:{attribute}")
        assert "NGram" in json.loads(result.out)["settings"]["drafter"]
    wrong = kdnb(*common, "-", "--drafter", "my_drafter_of_this_test:NOTHING")
    assert wrong.status == 2
    assert "gave 3, which has no start, draft and commit" in wrong.err
    absent = kdnb(*common, "-", "--drafter", "my_drafter_of_this_test:absent")
    assert "module 'my_drafter_of_this_test' has no 'absent'" in absent.err
    assert "cannot be imported" in kdnb(*common, "-", "--policy", "no_such_module:x").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Give one of --prompt and --prompt-ids"),
        (("--prompt", "a", "--prompt-ids", "1"), "Give one of --prompt and --prompt-ids"),
        (("--prompt-ids", "1,x"), "--prompt-ids is '1,x'; write integers separated by commas"),
        (("--prompt-ids", "1,999"), "prompt[1] is 999 but ids of this model go from 0 to 259"),
        (("--prompt", ""), "prompt is empty"),
        (("--prompt", "a", "--policy", "widest"), 'policy "widest" is unknown; use one of'),
        (("--prompt", "a", "--backend", "abacus"), 'backend "abacus" is unknown'),
        (("--prompt", "a", "--dtype", "float8"), 'dtype "float8" is not one'),
        (("--prompt", "a", "--max-new-tokens", "0"), "max_new_tokens is 0"),
        (("--prompt", "a", "--max-new-tokens", "9999"), "max_position_embeddings"),
        (("--prompt", "a", "--node-budget", "-1"), "node_budget is -1"),
        (("--prompt", "a", "--temperature", "-1"), "temperature is -1.0"),
        (("--prompt", "a", "--target", "nowhere"), "nowhere"),
        (("--prompt", "a", "--drafter", "nowhere"), "nowhere"),
        (("--prompt", "a", "--stop-ids", "x"), "--stop-ids is 'x'"),
        (("--prompt", "a", "--max-new-tokens", "2", "--json", "/no/such/dir/x.json"), "cannot be written"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(kdnb, words, message):
    result = kdnb("generate", *words)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err
    errors = [line for line in result.err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1


def test_a_large_checkpoint_says_what_to_expect(kdnb, monkeypatch):
    monkeypatch.setattr("kdnb.cli.options.LARGE_BYTES", 1000)
    result = kdnb("generate", "--prompt", "x", "--max-new-tokens", 2, "--json")
    assert "mapped 0.0 GiB of tiny" in result.err
    assert "the first token will take about 0 s" in result.err
    assert len(json.loads(result.out)["token_ids"]) == 2


def test_interrupting_keeps_what_was_decoded(kdnb, tmp_path, monkeypatch):
    count = 0
    push = Streamer.push

    def stop_at_the_fifth(self, token_id):
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return push(self, token_id)

    monkeypatch.setattr(Streamer, "push", stop_at_the_fifth)
    path = tmp_path / "run.json"
    result = kdnb("generate", "--prompt", PROMPT, "--max-new-tokens", 30, "--json", path)
    assert result.status == 130
    assert result.err.endswith("Interrupted.\n")
    data = json.loads(path.read_text())
    assert data["summary"]["stop_reason"] == "interrupted"
    assert 5 <= len(data["token_ids"]) < 30  # the fifth token's round is kept whole


class Bytes:
    """A target whose tokens are bytes."""

    class tokenizer:
        @staticmethod
        def decode(ids):
            return bytes(ids).decode("utf-8", "replace")


def test_streaming_gives_whole_characters_only():
    stream = Streamer(Bytes)
    pieces = [stream.push(byte) for byte in "aé日😀z".encode()]
    assert "".join(pieces) + stream.rest() == "aé日😀z"
    assert pieces[:3] == ["a", "", "é"]
    stream = Streamer(Bytes)
    assert stream.push(0xE6) == ""
    assert stream.rest() == "\ufffd"


def test_streaming_gets_over_bytes_that_are_no_text():
    stream = Streamer(Bytes)
    text = "".join(stream.push(byte) for byte in [0xFF] * 20 + list(b"ok")) + stream.rest()
    assert text == "\ufffd" * 20 + "ok"


def test_control_characters_do_not_reach_the_terminal():
    assert safe("a\x1b[2Jb\n\tc\x07") == "a\\x1b[2Jb\n\tc\\x07"


def test_what_cannot_be_a_policy_is_refused_without_a_traceback(kdnb):
    for name in ("os:getcwd", "os:sep", "math:pi"):
        result = kdnb("generate", "--prompt", "x", "--policy", name)
        assert result.status == 2
        assert f"Error: '{name}' is no tree policy, to be called with (draft, node_budget)" in result.err

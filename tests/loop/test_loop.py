"""What the loop promises besides its tokens: lengths, callbacks, interrupts, traces, guards."""

import json

import numpy as np
import pytest

import kdnb
from kdnb.acceptance import Acceptance
from kdnb.draft import Draft
from kdnb.errors import ConfigError, DrafterError, PolicyError, TokenError, VerifyRuleError
from kdnb.loop import start
from kdnb.run import Run
from kdnb.settings import Settings
from kdnb.tree import DraftTree

PROMPT = "def read(self, size):\n\tif size"


@pytest.fixture(scope="module")
def pair():
    target = kdnb.load_target("golden")
    return target, kdnb.load_drafter("golden", target)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 8, 9, 30])
def test_max_new_tokens_is_never_overshot(pair, num_tokens):
    seen = []
    run = kdnb.generate(
        *(pair[0], PROMPT, pair[1]), max_new_tokens=num_tokens, stop_ids=(), on_token=seen.append
    )
    assert len(run.token_ids) == num_tokens
    assert seen == run.token_ids.tolist()
    assert run.stop_reason == "length"
    emitted = [token for r in run.rounds for token in r.emitted.tolist()]
    assert emitted == run.token_ids.tolist()[1:]


def test_text_is_the_tokens_decoded(pair):
    target, drafter = pair
    run = kdnb.generate(target, PROMPT, drafter, max_new_tokens=12)
    assert run.text == bytes(run.token_ids.tolist()).decode()
    assert run.prompt_ids.tolist() == list(PROMPT.encode())


def test_a_full_trace_records_what_an_inspector_shows(pair):
    target, drafter = pair
    run = kdnb.generate(target, PROMPT, drafter, max_new_tokens=20, node_budget=70, trace="full")
    step = run.rounds[1]
    n = step.tree.num_nodes
    assert n == 71
    np.testing.assert_array_equal(step.visible_words, step.tree.visible_words)
    assert step.visible_words.shape == (71, 2)
    np.testing.assert_array_equal(step.cache_row, step.prefix_len + np.arange(n))
    assert step.draft_top_ids.shape == (7, 70)
    np.testing.assert_array_equal(step.target_top_ids[:, 0], step.next_ids)
    committed = [*run.prompt_ids, *run.token_ids][: step.prefix_len]
    for node in (1, 5, 70):
        path = [*committed, *(int(step.tree.token_ids[i]) for i in step.tree.path(node))]
        row = target.logits(path)[-2].astype(np.float64)
        expected = row[path[-1]] - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert step.target_log_prob[node] == pytest.approx(expected, abs=1e-3)
    light = kdnb.generate(target, PROMPT, drafter, max_new_tokens=9).rounds[0]
    assert light.target_log_prob is None
    assert light.visible_words is None


def test_interrupt_leaves_a_usable_run_and_drafter(pair):
    target, drafter = pair
    whole = kdnb.generate(target, PROMPT, drafter, max_new_tokens=30)
    count = 0

    def stop_at_the_tenth(token_id):
        nonlocal count
        count += 1
        if count == 10:
            raise KeyboardInterrupt

    run = kdnb.generate(target, PROMPT, drafter, max_new_tokens=30, on_token=stop_at_the_tenth)
    assert run.stop_reason == "interrupted"
    assert 10 <= len(run.token_ids) < 30  # the round of the tenth token is kept whole
    assert run.token_ids.tolist() == whole.token_ids.tolist()[: len(run.token_ids)]
    assert 1 + sum(len(step.emitted) for step in run.rounds) == len(run.token_ids)
    again = kdnb.generate(target, PROMPT, drafter, max_new_tokens=30)
    assert again.token_ids.tolist() == whole.token_ids.tolist()


def test_an_interrupted_forward_does_not_damage_the_decoding(pair):
    target, drafter = pair
    whole = kdnb.generate(target, PROMPT, drafter, max_new_tokens=30)
    decoding = start(target, PROMPT, drafter, Settings(max_new_tokens=30))
    steps = iter(decoding)
    next(steps)
    verify_attention, calls = target.backend.verify_attention, []

    def break_once(*args):
        if not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return verify_attention(*args)

    target.backend.verify_attention = break_once
    try:
        with pytest.raises(KeyboardInterrupt):
            decoding.round()
    finally:
        del target.backend.verify_attention
    for _ in decoding:
        pass
    assert decoding.token_ids == whole.token_ids.tolist()


def test_a_decoding_goes_on_after_a_callback_or_a_prefill_was_interrupted(pair):
    target, drafter = pair
    whole = kdnb.generate(target, PROMPT, drafter, max_new_tokens=30)
    fail_at = {1, 9}
    seen = []

    def fails_twice(token_id):
        seen.append(token_id)
        if len(seen) in fail_at:
            raise KeyboardInterrupt

    choices = Settings(max_new_tokens=30, prefill_chunk=8, on_token=fails_twice)
    decoding = start(target, PROMPT, drafter, choices)
    forward, calls = target.forward, []

    def break_second_chunk(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    target.forward = break_second_chunk
    try:
        interrupts = 0
        while decoding.stop_reason is None:
            try:
                for _ in decoding:
                    pass
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        del target.forward
    assert interrupts == 3
    assert decoding.token_ids == whole.token_ids.tolist()


def test_rounds_yields_what_generate_records(pair):
    target, drafter = pair
    run = kdnb.generate(target, PROMPT, drafter, max_new_tokens=20)
    for ours, theirs in zip(kdnb.rounds(target, PROMPT, drafter, max_new_tokens=20), run.rounds, strict=True):
        assert ours.accepted.tolist() == theirs.accepted.tolist()
        assert set(ours.times_us) == {"draft", "build", "verify", "accept", "compact"}


def test_a_forgotten_length_and_numbers_of_numpy(pair):
    target, drafter = pair
    with pytest.raises(ConfigError, match=r"generate\(\) needs max_new_tokens"):
        kdnb.generate(target, PROMPT, drafter)
    choices = {"max_new_tokens": np.int64(4), "node_budget": np.int32(3), "temperature": np.float32(0.5)}
    run = kdnb.generate(target, PROMPT, drafter, **choices, seed=np.uint8(7))
    back = Run.from_json(json.loads(json.dumps(run.to_json())))
    assert back.settings == run.settings
    assert back.prefill_min_gap == pytest.approx(run.prefill_min_gap)
    assert back.summary()["min_gap"] == run.summary()["min_gap"]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"prompt": []}, TokenError, "prompt is empty"),
        ({"prompt": [1, 260]}, TokenError, r"prompt\[1\] is 260 but ids of this model go from 0 to 259"),
        ({"prompt": [-1]}, TokenError, r"prompt\[0\] is -1"),
        ({"prompt": [1.5]}, TokenError, "float64"),
        ({"prompt": [65] * 500}, ConfigError, "500 tokens and max_new_tokens is 20: together 520.* 512"),
        ({"max_new_tokens": 0}, ConfigError, "max_new_tokens is 0"),
        ({"max_new_tokens": True}, ConfigError, "max_new_tokens is True"),
        ({"node_budget": -1}, ConfigError, "node_budget is -1"),
        ({"node_budget": 2.5}, ConfigError, "node_budget is 2.5"),
        ({"seed": -3}, ConfigError, "seed is -3"),
        ({"prefill_chunk": 0}, ConfigError, "prefill_chunk is 0"),
        ({"trace": "all"}, ConfigError, 'trace is "all"'),
        ({"policy": "best"}, ConfigError, "best.*ddtree"),
        ({"temperature": -1.0}, ConfigError, "temperature is -1.0"),
        ({"top_p": 0.0}, ConfigError, "top_p is 0.0"),
        ({"top_k": -2}, ConfigError, "top_k is -2"),
        ({"stop_ids": 5}, ConfigError, "stop_ids is 5"),
        ({"stop_ids": "ab"}, ConfigError, "stop_ids is 'ab'"),
        ({"stop_ids": [1.5]}, ConfigError, r"stop_ids is \[1.5\]"),
        ({"stop_ids": [999]}, TokenError, r"stop_ids\[0\] is 999 but ids of this model go from 0 to 259"),
        ({"top_k": 5}, ConfigError, "top_k is 5 and top_p is 1.0, but temperature 0 is greedy"),
        ({"node_budget": 10**20}, ConfigError, "node_budget is 1000.*use an integer from 0 to 1048576"),
        ({"node_buget": 3}, ConfigError, r'no argument "node_buget"; did you mean node_budget\?'),
        ({"on_token": 3}, ConfigError, "on_token is 3"),
        ({"drafter": "tiny"}, ConfigError, "drafter is 'tiny'.*kdnb.load_drafter"),
        ({"drafter": object}, ConfigError, "drafter is <class 'object'>"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(pair, changes, error, message):
    arguments = {"prompt": PROMPT, "max_new_tokens": 20, "drafter": pair[1], **changes}
    with pytest.raises(error, match=message):
        kdnb.rounds(pair[0], **arguments)


class _Fixed:
    """A drafter that returns what it is given."""

    max_depth, tap_names = 2, ()

    def __init__(self, make):
        self.make = make

    def start(self, target):
        pass

    def draft(self, context):
        return self.make(context)

    def commit(self, token_ids, features):
        pass


def _tree(context, root_id=None, count=1):
    root = context.root_id if root_id is None else root_id
    return DraftTree.from_parents([root, *range(count)], [-1, *range(count)])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda c: _tree(c, root_id=c.root_id + 1), PolicyError, "root"),
        (lambda c: _tree(c, count=9), PolicyError, "9.*node_budget"),
        (
            lambda c: DraftTree.from_parents([c.root_id, 999], [-1, 0]),
            PolicyError,
            "999",
        ),
        (lambda c: None, DrafterError, "NoneType"),
        (
            lambda c: Draft(c.root_id, np.full((2, 260), np.nan, dtype=np.float32)),
            DrafterError,
            "NaN",
        ),
    ],
)
def test_a_broken_drafter_fails_by_message(pair, make, error, message):
    with pytest.raises(error, match=message):
        kdnb.generate(pair[0], PROMPT, _Fixed(make), max_new_tokens=9, node_budget=4)


def test_a_broken_rule_fails_by_message(pair):
    class Skips:
        lossless = True

        def __call__(self, tree, target_logits, noise):
            return Acceptance(np.array([0, tree.num_nodes + 3]), 1)

    with pytest.raises(VerifyRuleError):
        kdnb.generate(pair[0], PROMPT, pair[1], max_new_tokens=9, verify_rule=Skips())


def test_node_budget_0_is_plain_decoding_and_never_drafts(pair):
    def refuse(context):
        raise AssertionError("drafted")

    plain = kdnb.generate(pair[0], PROMPT, max_new_tokens=9)
    run = kdnb.generate(pair[0], PROMPT, _Fixed(refuse), max_new_tokens=9, node_budget=0)
    assert run.token_ids.tolist() == plain.token_ids.tolist()
    assert [r.tree.num_nodes for r in run.rounds] == [1] * 8


def test_progress_is_silent_without_a_terminal(pair, capsys):
    kdnb.generate(pair[0], PROMPT, max_new_tokens=4, progress=True)
    assert capsys.readouterr() == ("", "")

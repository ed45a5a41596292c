"""Drafters without a model, loading, and refusals by message."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kdnb
from kdnb.draft import Draft, DraftContext
from kdnb.drafters import DFlash, NGram, NoisyOracle, Replay
from kdnb.errors import CheckpointError, ConfigError, DrafterError
from kdnb.noise import Noise
from kdnb.shipped import shipped_folder
from kdnb.testing import CheckFailed, check_drafter
from kdnb.tree import DraftTree
from tests.support.goldens import DATA
from tests.support.models import write_checkpoint


@pytest.fixture(scope="module")
def target():
    return kdnb.load_target("golden")


def context_of(text, budget=16):
    ids = np.array(text, dtype=np.int32)
    return DraftContext(ids, len(ids) - 1, int(ids[-1]), budget, Noise(0, len(ids) - 1))


# --- n-gram -----------------------------------------------------------------------------------
def test_ngram_copies_what_followed_before():
    tree = NGram(max_depth=3).draft(context_of([1, 2, 3, 4, 5, 9, 1, 2]))
    assert tree.token_ids.tolist() == [2, 3, 4, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 2]
    np.testing.assert_allclose(tree.scores, 0)


def test_ngram_merges_places_into_a_tree_and_weighs_longer_matches_more():
    # after "1 2" came 7; after a lone 2 came 8: weights 2 and 1
    tree = NGram(max_depth=1, max_n=2).draft(context_of([1, 2, 7, 5, 2, 8, 1, 2]))
    assert tree.token_ids.tolist() == [2, 7, 8]
    np.testing.assert_allclose(np.exp(tree.scores[1:]), [2 / 3, 1 / 3])


def test_ngram_keeps_the_budget_and_takes_the_best_first():
    text = [5, 1, 5, 1, 5, 2, 5]
    tree = NGram(max_depth=2, max_n=1).draft(context_of(text, budget=1))
    assert tree.token_ids.tolist() == [5, 1]
    assert NGram().draft(context_of(text, budget=64)).num_nodes > 3


def test_ngram_without_a_match_drafts_nothing():
    assert NGram().draft(context_of([1, 2, 3])).num_nodes == 1
    assert NGram(min_n=2).draft(context_of([1, 2, 3, 2])).num_nodes == 1
    assert NGram().draft(context_of([4])).num_nodes == 1


def test_ngram_is_lossless_and_helps_on_repetition(target):
    prompt = "self.a = a\n\tself.b = b\n\tself.a = a\n\tself.b"
    plain = kdnb.generate(target, prompt, max_new_tokens=40, stop_ids=())
    run = kdnb.generate(target, prompt, NGram(), max_new_tokens=40, stop_ids=())
    assert run.token_ids.tolist() == plain.token_ids.tolist()
    assert len(run.rounds) < 35


# --- replay and oracle ------------------------------------------------------------------------
def test_replay_takes_a_run(target):
    plain = kdnb.generate(target, "import ", max_new_tokens=33, stop_ids=())
    run = kdnb.generate(target, "import ", Replay(plain), max_new_tokens=33, node_budget=7, stop_ids=())
    assert [step.num_emitted for step in run.rounds] == [8] * 4


def test_replay_is_sure_at_any_vocabulary_size(target, monkeypatch):
    for vocab_size in (260, 163_840):
        config = dataclasses.replace(target.config, vocab_size=vocab_size)
        drafter = Replay([3, 5, 8, 13], block_size=4)
        drafter.start(SimpleNamespace(config=config))
        log_probs = drafter.draft(context_of([3])).log_probs
        assert log_probs.argmax(axis=1).tolist() == [5, 8, 13]
        assert np.exp(log_probs.max(axis=1)).min() > 0.9999


def test_replay_past_the_end_of_its_text_knows_nothing(target):
    drafter = Replay([3, 5], block_size=3)
    drafter.start(target)
    log_probs = drafter.draft(context_of([3])).log_probs
    assert log_probs[0].argmax() == 5
    np.testing.assert_allclose(log_probs[1], -np.log(260), atol=1e-6)


def test_replay_refuses_what_it_cannot_replay(target):
    with pytest.raises(DrafterError, match=r"token_ids\[1\] is 260 but ids of the target go from 0 to 259"):
        Replay([1, 260]).start(target)
    with pytest.raises(DrafterError, match="before start"):
        Replay([1, 2]).draft(context_of([1]))
    for wrong in ([0.5, 1.0], [[1, 2]]):
        with pytest.raises(ConfigError, match="pass one sequence of ids"):
            Replay(wrong)


def test_oracle_refuses_a_context_it_has_not_seen(target):
    with pytest.raises(DrafterError, match="has seen 0 committed rows but the cache holds 2"):
        NoisyOracle(target).draft(context_of([1, 2, 3]))


def test_replay_errs_as_often_as_asked(target):
    text = list(range(200))
    drafter = Replay(text, block_size=2, error_rate=0.25, seed=3)
    drafter.start(target)
    wrong = 0
    for at in range(199):
        draft = drafter.draft(context_of(text[: at + 1]))
        wrong += draft.top_k(1)[0][0, 0] != text[at + 1]
    assert 30 <= wrong <= 70


def test_oracle_without_noise_is_always_right_and_with_noise_less(target):
    accepted = []
    for noise in (0.0, 3.0, 100.0):
        drafter = NoisyOracle(target, max_depth=4, noise=noise)
        run = kdnb.generate(target, "def f(x):", drafter, max_new_tokens=25, policy="chain", stop_ids=())
        accepted.append(run.summary()["mean_accepted_per_round"])
    assert accepted[0] == 4
    assert accepted[0] > accepted[1] > accepted[2]
    assert accepted[2] < 0.5


# --- loading ----------------------------------------------------------------------------------
def test_names(target):
    assert repr(kdnb.load_drafter("tiny", target)).startswith("DFlash('tiny', 2 layers, block_size=8")
    assert isinstance(kdnb.load_drafter("ngram", target), NGram)
    with pytest.raises(ConfigError, match="'nothing-here' does not exist; .* or one of golden, ngram, tiny"):
        kdnb.load_drafter("nothing-here", target)
    with pytest.raises(ConfigError, match='"huge" is not shipped; there are golden, tiny'):
        shipped_folder("huge", "target")
    with pytest.raises(ConfigError, match='no part "lm_head"; use target or drafter'):
        shipped_folder("tiny", "lm_head")
    assert shipped_folder("tiny", "drafter") == shipped_folder("golden", "drafter")


def test_a_target_is_no_drafter(target):
    with pytest.raises(ConfigError, match="has no dflash_config: .*DeepseekV3ForCausalLM"):
        kdnb.load_drafter(shipped_folder("golden", "target"), target)


def test_an_eagle_head_and_a_file_are_no_drafters(target, tmp_path):
    config = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, "hidden_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has no dflash_config: .*LlamaForCausalLMEagle3.* is not a DFlash"):
        kdnb.load_drafter(tmp_path, target)
    with pytest.raises(ConfigError, match="is not a folder"):
        kdnb.load_drafter(tmp_path / "config.json", target)


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(shipped_folder("golden", "drafter"), tmp_path / "d")
    return tmp_path / "d"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 300}, "the drafter's vocab_size is 300 but the target has 260"),
        ({"hidden_size": 64}, "the drafter's hidden_size is 64 but the target has 128"),
        ({"num_target_layers": 61}, "num_target_layers is 61 but the target has 4"),
        (
            {"dflash_config": {"mask_token_id": 256, "target_layer_ids": [1, 4]}},
            "target_layer_ids holds 4 but the target has layers 0 to 3",
        ),
        (
            {"dflash_config": {"mask_token_id": 260, "target_layer_ids": [1, 2]}},
            "mask_token_id is 260 but ids of the target go from 0 to 259",
        ),
    ],
)
def test_a_drafter_of_another_model_is_refused_with_both_numbers(target, folder, changes, message):
    from kdnb.drafter_config import DFlashConfig

    config = {**json.loads((folder / "config.json").read_text()), **changes}
    with pytest.raises(DrafterError, match=message):
        DFlash(DFlashConfig.from_dict(config), {}, target)


def test_a_block_of_one_row_is_refused(target, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "block_size": 1}))
    with pytest.raises(ConfigError, match="block_size is 1.*2 or more"):
        kdnb.load_drafter(folder, target)
    made = dataclasses.replace(kdnb.load_drafter("golden", target).config, block_size=1)
    with pytest.raises(DrafterError, match="block_size is 1; .* so 2"):
        DFlash(made, {}, target)


def test_missing_extra_and_misshapen_tensors_in_one_error(target, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("fc.weight")
    tensors["norm.weight"] = np.ones(4, np.float32)
    tensors["d2t"] = np.zeros(3, np.int64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        kdnb.load_drafter(folder, target)
    for part in ("1 missing: fc.weight", "d2t", "1 misshapen: norm.weight is"):
        assert part in str(caught.value)


def test_another_target_or_backend_at_start_is_refused(target, tmp_path):
    drafter = kdnb.load_drafter("golden", target)
    other = kdnb.load_target(write_checkpoint(tmp_path / "other"))
    with pytest.raises(DrafterError, match="vocab_size is 260 but the target has 40"):
        kdnb.generate(other, [1, 2], drafter, max_new_tokens=4)
    with pytest.raises(DrafterError, match="load the drafter for this target"):
        kdnb.generate(kdnb.load_target("golden"), [1, 2], drafter, max_new_tokens=4)


def test_dflash_refuses_a_context_it_has_not_seen(target):
    drafter = kdnb.load_drafter("golden", target)
    with pytest.raises(DrafterError, match="before any commit, with 3 rows in the target's cache"):
        drafter.draft(context_of([1, 2, 3, 4]))
    with pytest.raises(DrafterError, match="before any commit, with 0 rows"):
        drafter.draft(context_of([1]))
    two = np.array([1, 2], dtype=np.int32)
    drafter.commit(two, {name: np.zeros((2, 128), np.float32) for name in drafter.tap_names})
    with pytest.raises(DrafterError, match="has seen 2 committed rows but the cache holds 3"):
        drafter.draft(context_of([1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 128), (2, 128)], "'layers.1.out' have 2 rows but 3 tokens were committed"),
        ([(3, 128), (4, 128)], "'layers.2.out' have 4 rows but 3 tokens were committed"),
        ([(3, 128), (3, 64)], r"'layers.2.out' have shape \[3, 64\]; rows of hidden_size 128"),
        ([(3, 128)], r"features lack 'layers.2.out'; commit all of tap_names: \['layers.1.out', 'layers.2"),
    ],
)
def test_dflash_refuses_features_that_do_not_fit_and_stays_usable(target, shapes, message):
    drafter = kdnb.load_drafter("golden", target)
    features = {f"layers.{1 + i}.out": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    with pytest.raises(DrafterError, match=message):
        drafter.commit(np.array([1, 2, 3], dtype=np.int32), features)
    assert drafter.context_len == 0


def test_an_interrupted_commit_leaves_all_layers_where_they_were(target, monkeypatch):
    drafter = kdnb.load_drafter("golden", target)
    features = {name: np.ones((3, 128), np.float32) for name in drafter.tap_names}

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(drafter._cache[1], "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        drafter.commit(np.array([1, 2, 3], dtype=np.int32), features)
    assert [cache.length for cache in drafter._cache] == [0, 0]


def test_the_block_is_whole_up_to_the_last_token(target, monkeypatch):
    """However little is still wanted, and however small the budget, 7 depths are drafted."""
    drafter = kdnb.load_drafter("golden", target)
    depths = []
    right = drafter.draft
    monkeypatch.setattr(drafter, "draft", lambda c: (depths.append(d := right(c)), d)[1])
    run = kdnb.generate(target, "import ", drafter, max_new_tokens=6, node_budget=1, stop_ids=())
    assert len(depths) == len(run.rounds) >= 3
    assert {draft.max_depth for draft in depths} == {drafter.max_depth} == {7}


def test_the_context_may_be_long(target):
    """The draft cache grows beyond its first capacity."""
    drafter = kdnb.load_drafter("golden", target)
    prompt = (list(b"def f(a):\n\treturn a\n") * 20)[:390]
    plain = kdnb.generate(target, prompt, max_new_tokens=20, stop_ids=())
    run = kdnb.generate(target, prompt, drafter, max_new_tokens=20, stop_ids=())
    assert run.token_ids.tolist() == plain.token_ids.tolist()
    assert drafter.context_len > 256


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: NGram(min_n=3, max_n=2), "min_n is 3, max_n 2"),
        (lambda t: NGram(max_depth=0), "max_depth is 0"),
        (lambda t: Replay([1], block_size=1), "block_size is 1"),
        (lambda t: Replay([1], error_rate=1.5), "error_rate is 1.5"),
        (lambda t: NoisyOracle(t, max_depth=0), "max_depth is 0"),
        (lambda t: NoisyOracle(t, max_depth=2.5), "max_depth is 2.5; use an integer from 1 up"),
        (lambda t: Replay([1], block_size=2.5), "block_size is 2.5; use an integer from 2 up"),
        (lambda t: NGram(max_depth=2.5), "max_depth is 2.5; use an integer from 1 up"),
        (lambda t: NoisyOracle(t, noise=-1), "noise is -1"),
    ],
)
def test_bad_arguments(target, make, message):
    with pytest.raises(ConfigError, match=message):
        make(target)


def test_two_targets_do_not_share_anything(target):
    other = kdnb.load_target(DATA / "targets" / "v3")
    assert other.backend is not target.backend


def test_kinds_of_proposal(target):
    oracle = NoisyOracle(target, max_depth=2)
    oracle.commit(np.array([65, 66], dtype=np.int32), {})
    assert isinstance(oracle.draft(context_of([65, 66, 67])), Draft)
    assert isinstance(NGram().draft(context_of([65, 66, 65])), DraftTree)


# --- what check_drafter finds, beyond tests/unit/test_testing_drafters_backends.py --------------------
class Useless:
    """A right but useless drafter; the tests break one thing each."""

    max_depth, tap_names = 2, ()

    def start(self, target):
        self.target = target

    def commit(self, token_ids, features):
        pass

    def draft(self, context):
        return Draft(context.root_id, np.zeros((2, 260), dtype=np.float32))


class TooDeep(Useless):
    max_depth = 1


class DeepTree(Useless):
    def draft(self, context):
        return DraftTree.from_parents([context.root_id, 1, 2, 3], [-1, 0, 1, 2])


class LateNaN(Useless):
    """A backend's array is not looked at until it is needed."""

    def draft(self, context):
        logits = np.full((2, 260), np.nan, dtype=np.float32)
        return Draft(context.root_id, logits, self.target.backend)


class CutsTheCache(Useless):
    """Gets hold of the caches that the target makes; `harm` does something to them."""

    def __init__(self, harm):
        self.harm = harm

    def start(self, target):
        right = type(target).new_cache

        def new_cache(*args, **kwargs):
            self.cache = right(target, *args, **kwargs)
            return self.cache

        target.new_cache = new_cache

    def draft(self, context):
        self.harm(self.cache)
        return super().draft(context)


def scale_layer_2(cache):
    cache.rows[2] *= 1.01


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (TooDeep(), "the draft has 2 depths but max_depth is 1"),
        (DeepTree(), "the tree is 3 deep but max_depth is 2"),
        (LateNaN(), "reading the draft raised DrafterError: .* NaN"),
        (CutsTheCache(lambda cache: cache.truncate(3)), "the target's cache from 17 rows to 3"),
        (CutsTheCache(scale_layer_2), "rows of layer 2 in the target's cache"),
    ],
    ids=["too deep", "deep tree", "late NaN", "cut cache", "changed cache"],
)
def test_check_drafter_finds(drafter, message):
    with pytest.raises(CheckFailed, match=message):
        check_drafter(drafter, kdnb.load_target("golden"))


def test_check_drafter_passes_the_right_one_also_with_a_short_prompt(target):
    check_drafter(Useless(), target)
    check_drafter(Useless(), target, [7, 8, 9])
    with pytest.raises(ConfigError, match="prompt_ids has 2 tokens"):
        check_drafter(Useless(), target, [7, 8])

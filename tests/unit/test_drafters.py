"""Drafters without a model, loading, and refusals by message."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kdnb
from kdnb.draft import Draft, DraftContext
from kdnb.drafters import NGram, NoisyOracle, Replay
from kdnb.errors import CheckpointError, ConfigError, DrafterError
from kdnb.noise import Noise
from kdnb.shipped import shipped_folder
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
    with pytest.raises(ConfigError, match="'nothing-here' does not exist"):
        kdnb.load_drafter("nothing-here", target)
    with pytest.raises(ConfigError, match='"huge" is not shipped; there are golden, tiny'):
        shipped_folder("huge", "target")


def test_a_target_is_no_drafter(target):
    with pytest.raises(ConfigError, match="has no dflash_config: .*DeepseekV3ForCausalLM"):
        kdnb.load_drafter(shipped_folder("golden", "target"), target)


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
    from kdnb.drafters import DFlash

    config = {**json.loads((folder / "config.json").read_text()), **changes}
    with pytest.raises(DrafterError, match=message):
        DFlash(DFlashConfig.from_dict(config), {}, target)


def test_missing_and_misshapen_tensors_in_one_error(target, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("fc.weight")
    tensors["norm.weight"] = np.ones(4, np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="1 missing: fc.weight .*1 misshapen: norm.weight is"):
        kdnb.load_drafter(folder, target)


def test_another_target_or_backend_at_start_is_refused(target, tmp_path):
    drafter = kdnb.load_drafter("golden", target)
    other = kdnb.load_target(write_checkpoint(tmp_path / "other"))
    with pytest.raises(DrafterError, match="vocab_size is 260 but the target has 40"):
        kdnb.generate(other, [1, 2], drafter, max_new_tokens=4)
    with pytest.raises(DrafterError, match="load the drafter for this target"):
        kdnb.generate(kdnb.load_target("golden"), [1, 2], drafter, max_new_tokens=4)


def test_dflash_refuses_a_context_it_has_not_seen(target):
    drafter = kdnb.load_drafter("golden", target)
    with pytest.raises(DrafterError, match="has seen 0 committed rows but the cache holds 3"):
        drafter.draft(context_of([1, 2, 3, 4]))
    features = {name: np.zeros((2, 128), np.float32) for name in drafter.tap_names}
    with pytest.raises(DrafterError, match="features have 2 rows but 3 tokens"):
        drafter.commit(np.array([1, 2, 3], dtype=np.int32), features)


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
        (lambda t: NGram(max_depth=0), "max_depth 0"),
        (lambda t: Replay([1], block_size=1), "block_size is 1"),
        (lambda t: Replay([1], error_rate=1.5), "error_rate is 1.5"),
        (lambda t: NoisyOracle(t, max_depth=0), "max_depth is 0"),
        (lambda t: NoisyOracle(t, noise=-1), "noise -1"),
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

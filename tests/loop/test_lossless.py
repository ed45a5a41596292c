"""Draft-tree decoding emits what plain decoding emits: random models, drafters, policies, budgets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kdnb
from kdnb.draft import Draft
from tests.support.models import write_checkpoint

SHAPES = {
    "v3": {},
    "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    "v2": {
        "model_type": "deepseek_v2",
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "q_lora_rank": None,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "yarn": {
        "rope_scaling": {
            "type": "yarn",
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
        }
    },
}
POLICIES = ["ddtree", "ddtree_spine", "chain", "threshold", "eagle_rerank"]


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Every shape, plain and deterministic."""
    made = {}
    for seed, (name, changes) in enumerate(SHAPES.items()):
        folder = write_checkpoint(tmp_path_factory.mktemp(name), seed, **changes)
        made[name] = (
            kdnb.load_target(folder),
            kdnb.load_target(folder, deterministic=True),
        )
    return made


class Guesser:
    """A drafter that mixes the target's true continuation into random marginals."""

    tap_names = ()

    def __init__(self, truth, max_depth, seed, strength):
        self.truth, self.max_depth = list(truth), max_depth
        self.seed, self.strength = seed, strength

    def start(self, target):
        self.vocab_size = target.config.vocab_size

    def draft(self, context):
        rng = np.random.default_rng([self.seed, context.prefix_len])
        logits = rng.standard_normal((self.max_depth, self.vocab_size)).astype(np.float32)
        at = len(context.token_ids)
        for depth, token_id in enumerate(self.truth[at : at + self.max_depth]):
            logits[depth, token_id] += self.strength
        return Draft(context.root_id, logits)

    def commit(self, token_ids, features):
        pass


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_greedy_equals_plain(targets, data):
    name = data.draw(st.sampled_from(sorted(SHAPES)))
    deterministic = data.draw(st.booleans())
    target = targets[name][deterministic]
    prompt = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=9))
    num_tokens = data.draw(st.integers(1, 14))
    plain = kdnb.generate(target, prompt, max_new_tokens=num_tokens)
    drafter = Guesser(
        [*prompt, *plain.token_ids],
        max_depth=data.draw(st.integers(1, 6)),
        seed=data.draw(st.integers(0, 99)),
        strength=data.draw(st.sampled_from([0.0, 2.0, 6.0])),
    )
    run = kdnb.generate(
        target,
        prompt,
        drafter,
        max_new_tokens=num_tokens,
        node_budget=data.draw(st.integers(0, 64)),
        policy=data.draw(st.sampled_from(POLICIES)),
        prefill_chunk=data.draw(st.integers(1, 9)),
    )
    if deterministic or plain.summary()["min_gap"] > 1e-3:
        assert run.token_ids.tolist() == plain.token_ids.tolist()
    assert len(run.token_ids) == num_tokens


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_sampling_gives_the_text_of_plain_sampling(targets, data):
    name = data.draw(st.sampled_from(sorted(SHAPES)))
    target = targets[name][1]  # deterministic: equality is exact whatever the gap
    choices = {
        "max_new_tokens": 12,
        "temperature": data.draw(st.sampled_from([0.3, 1.0, 1.7])),
        "top_k": data.draw(st.sampled_from([0, 3, 20])),
        "top_p": data.draw(st.sampled_from([1.0, 0.8])),
        "seed": data.draw(st.integers(0, 10**6)),
    }
    prompt = data.draw(st.lists(st.integers(0, 39), min_size=1, max_size=5))
    plain = kdnb.generate(target, prompt, **choices)
    drafter = Guesser([*prompt, *plain.token_ids], max_depth=4, seed=1, strength=4.0)
    for budget in (1, 9, 40):
        policy = data.draw(st.sampled_from(POLICIES))
        run = kdnb.generate(target, prompt, drafter, node_budget=budget, policy=policy, **choices)
        assert run.token_ids.tolist() == plain.token_ids.tolist()


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_deterministic_logits_and_cache_are_bit_equal_at_every_budget(targets, shape):
    target = targets[shape][1]
    prompt = [1, 2, 3]
    plain = kdnb.generate(target, prompt, max_new_tokens=16)
    exact = {}
    for step in kdnb.rounds(target, prompt, max_new_tokens=16, trace="full"):
        exact[step.prefix_len] = step.target_top_log_probs[0]
    drafter = Guesser([*prompt, *plain.token_ids], max_depth=5, seed=0, strength=5.0)
    deep = 0
    for budget in (1, 4, 17, 64):
        for policy in POLICIES:
            for step in kdnb.rounds(
                target,
                prompt,
                drafter,
                max_new_tokens=16,
                node_budget=budget,
                policy=policy,
                trace="full",
            ):
                for depth, node in enumerate(step.accepted):
                    known = exact.get(step.prefix_len + depth)
                    if known is None:  # beyond the length that plain decoding went to
                        continue
                    np.testing.assert_array_equal(step.target_top_log_probs[node], known)
                    deep += depth
    assert deep > 50, "hardly any node below a root was compared"


def test_deterministic_can_be_asked_for_per_run(targets):
    plain, fixed = targets["groups"]
    prompt = [4, 2]
    wanted = kdnb.generate(fixed, prompt, max_new_tokens=12)
    drafter = Guesser([*prompt, *wanted.token_ids], max_depth=4, seed=0, strength=4.0)
    for step in kdnb.rounds(plain, prompt, drafter, max_new_tokens=12, deterministic=True, trace="full"):
        path = [*prompt, *wanted.token_ids][: step.prefix_len + 1]
        exact = fixed.forward(path, fixed.new_cache()).logits[-1].max()
        row = step.target_top_log_probs[0]
        again = fixed.logits(path)[-1].astype(np.float64)
        assert exact == fixed.logits(path)[-1].max()
        np.testing.assert_allclose(row[0], again.max() - np.log(np.exp(again).sum()), atol=1e-6)
    run = kdnb.generate(plain, prompt, drafter, max_new_tokens=12, deterministic=True)
    assert run.token_ids.tolist() == wanted.token_ids.tolist()
    assert run.settings["deterministic"] is True
    assert plain.backend.deterministic is False  # only during the run


def test_each_node_equals_running_its_root_path_alone(targets):
    target = targets["v3"][0]
    tree = kdnb.DraftTree.from_parents([5, 6, 7, 8, 9, 10, 6, 11], [-1, 0, 0, 1, 1, 2, 3, 6])
    prompt = [3, 1, 4, 1, 5]
    cache = target.new_cache()
    target.forward(prompt, cache)
    cache.commit()
    logits = target.forward(
        tree.token_ids, cache, positions=len(prompt) + tree.depths, visible=tree.visible
    ).logits
    for node in range(tree.num_nodes):
        path = [*prompt, *(int(tree.token_ids[n]) for n in tree.path(node))]
        np.testing.assert_allclose(logits[node], target.logits(path)[-1], atol=2e-5, rtol=0)


def test_a_chain_as_a_tree_gives_the_bits_of_no_mask(targets):
    target = targets["v3"][0]
    rows = 9
    chain = kdnb.DraftTree.from_parents(list(range(rows)), [-1, *range(rows - 1)])
    results = []
    for visible in (None, chain.visible):
        cache = target.new_cache()
        target.forward([3, 1, 4], cache)
        cache.commit()
        results.append(target.forward(chain.token_ids, cache, visible=visible).logits)
    np.testing.assert_array_equal(results[0], results[1])


def test_after_compaction_the_cache_is_a_fresh_prefill(targets):
    target = targets["v3"][0]
    prompt = [3, 1, 4, 1, 5]
    plain = kdnb.generate(target, prompt, max_new_tokens=12)
    drafter = Guesser([*prompt, *plain.token_ids], max_depth=4, seed=2, strength=3.0)
    run = kdnb.generate(target, prompt, drafter, max_new_tokens=12, node_budget=9)
    assert max(len(r.accepted) for r in run.rounds) > 1
    from kdnb.loop import start
    from kdnb.settings import Settings

    decoding = start(target, prompt, drafter, Settings(max_new_tokens=12, node_budget=9))
    for _ in decoding:
        pass
    committed = [*prompt, *decoding.token_ids][: decoding.cache.prefix_len]
    path_tokens = list(prompt)
    for step in decoding.rounds:
        path_tokens += step.tree.token_ids[step.accepted].tolist()
    assert path_tokens[: len(committed)] == committed[: len(path_tokens)]
    fresh = target.new_cache()
    target.forward(path_tokens, fresh)
    fresh.commit()
    assert fresh.prefix_len == decoding.cache.prefix_len
    for layer in range(target.config.num_hidden_layers):
        np.testing.assert_allclose(decoding.cache.latent(layer), fresh.latent(layer), atol=1e-5, rtol=0)
        np.testing.assert_allclose(decoding.cache.rope_key(layer), fresh.rope_key(layer), atol=1e-5, rtol=0)

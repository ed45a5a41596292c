"""The golden drafter: features, block, logits and cache against z-lab's code; variants against naive float64.

Error: float32 sums in another order. 1e-4 is asked for; draft logits (root mean square 7 to 13) come within
2e-5 and the target's features (root mean square 12) within 7e-5.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kdnb
from kdnb.draft import DraftContext
from kdnb.drafters import DFlash
from kdnb.errors import ConfigError
from kdnb.noise import Noise
from tests.support.goldens import DATA, worst

GOLDEN = load_file(DATA / "pair" / "golden.safetensors")
FACTS = json.loads((DATA / "pair" / "golden.json").read_text())
PROMPTS = range(len(FACTS["prompts"]))
BOUND = 1e-4


@pytest.fixture(scope="module")
def pair():
    target = kdnb.load_target("golden")
    return target, kdnb.load_drafter("golden", target)


def context_of(token_ids, root_id, budget=16):
    ids = np.array([*token_ids, root_id], dtype=np.int32)
    return DraftContext(ids, len(token_ids), root_id, budget, Noise(0, len(token_ids)))


def committed(target, drafter, prompt, step=10_000):
    drafter.start(target)
    cache = target.new_cache()
    for start in range(0, len(prompt), step):
        chunk = np.array(prompt[start : start + step], dtype=np.int32)
        result = target.forward(chunk, cache, taps=drafter.tap_names)
        cache.commit()
        drafter.commit(chunk, result.taps)
    return result


@pytest.mark.parametrize("index", PROMPTS)
def test_features_and_first_draft(pair, index):
    target, drafter = pair
    prompt = FACTS["prompts"][index]
    result = committed(target, drafter, prompt["ids"])
    features = np.concatenate([result.taps[name] for name in drafter.tap_names], axis=1)
    assert worst(features, GOLDEN[f"p{index}.prefill_features"]) <= BOUND
    root_id = prompt["ar"]["tokens"][0]
    draft = drafter.draft(context_of(prompt["ids"], root_id))
    logits = draft._logits
    assert worst(logits, GOLDEN[f"p{index}.draft_logits_r0"]) <= BOUND
    ids, log_probs = draft.top_k(64)
    np.testing.assert_array_equal(ids, GOLDEN[f"p{index}.draft_topk_ids_r0"])
    assert worst(log_probs, GOLDEN[f"p{index}.draft_topk_logprobs_r0"]) <= BOUND


def context_after(prompt, start):
    """The first `start` tokens of a prompt and its greedy continuation, and the token behind them."""
    text = [*prompt["ids"], *prompt["ar"]["tokens"]]
    return text[:start], text[start]


@pytest.mark.parametrize("index", PROMPTS)
@pytest.mark.parametrize("case", ["dflash", "ddtree.b16"])
def test_three_rounds_on_golden_features(pair, monkeypatch, case, index):
    """The drafter alone: nothing of kdnb's forward is in its input but embedding and lm_head."""
    target, drafter = pair
    prompt = FACTS["prompts"][index]
    rounds = prompt["dflash"]["rounds"] if case == "dflash" else prompt["ddtree"]["16"]["rounds"]
    hidden, context = [], []
    lm_head, rms_norm = target.lm_head, target.backend.rms_norm
    monkeypatch.setattr(target, "lm_head", lambda x: (hidden.append(x), lm_head(x))[1])

    def recording(x, weight, eps):
        y = rms_norm(x, weight, eps)
        if weight is drafter._hidden_norm:
            context.append(y)
        return y

    monkeypatch.setattr(target.backend, "rms_norm", recording)
    drafter.start(target)
    before = 0
    for number, golden in enumerate(rounds[:3]):
        text, root_id = context_after(prompt, golden["start"])
        assert root_id == golden["root_token"]
        first = number == 0
        features = GOLDEN[f"p{index}.prefill_features" if first else f"p{index}.{case}.features_r{number}"]
        new = np.array(text[before:], dtype=np.int32)
        drafter.commit(new, dict(zip(drafter.tap_names, np.split(features, 2, axis=1), strict=True)))
        logits = drafter.draft(context_of(text, root_id))._logits
        name = "draft_logits_r0" if first else f"{case}.draft_logits_r{number}"
        assert worst(logits, GOLDEN[f"p{index}.{name}"]) <= BOUND
        before = golden["start"]
    assert worst(context[0], GOLDEN[f"p{index}.prefill_ctx"]) <= BOUND
    assert worst(hidden[0], GOLDEN[f"p{index}.draft_hidden_r0"][1:]) <= BOUND


@pytest.mark.parametrize("index", [0, 5])
def test_caches_after_a_whole_run(pair, index):
    target, drafter = pair
    prompt = FACTS["prompts"][index]
    from kdnb.loop import start
    from kdnb.settings import Settings

    decoding = start(
        target,
        prompt["ids"],
        drafter,
        Settings(max_new_tokens=FACTS["max_new_tokens"] + 1, node_budget=16, stop_ids=()),
    )
    for _ in decoding:
        pass
    for layer in range(target.config.num_hidden_layers):
        theirs = GOLDEN[f"p{index}.ddtree.b16.cache.{layer}.c"]
        assert worst(decoding.cache.latent(layer)[: len(theirs)], theirs) <= BOUND
        theirs = GOLDEN[f"p{index}.ddtree.b16.cache.{layer}.k_rope"]
        assert worst(decoding.cache.rope_key(layer)[: len(theirs)], theirs) <= BOUND
    for layer, kept in enumerate(drafter._cache):
        for name, ours in (("k", kept.keys), ("v", kept.values)):
            theirs = GOLDEN[f"p{index}.ddtree.b16.draft_cache.{layer}.{name}"].transpose(1, 0, 2)
            assert worst(ours[: len(theirs)], theirs) <= BOUND


def test_prefill_in_chunks_gives_the_same_draft(pair):
    target, drafter = pair
    prompt = FACTS["prompts"][4]["ids"]
    drafts = []
    for step in (10_000, 7, 1):
        committed(target, drafter, prompt, step)
        drafts.append(drafter.draft(context_of(prompt, 65)).log_probs)
    assert worst(drafts[1], drafts[0]) <= BOUND
    assert worst(drafts[2], drafts[0]) <= BOUND


def test_a_growing_cache_keeps_its_rows(pair):
    """Across the first capacity of 256 rows, by a commit and by a block written behind the context."""
    target, drafter = pair
    text = [token % 250 for token in range(3, 3 + 7 * 300, 7)]
    committed(target, drafter, text)
    expected = drafter.draft(context_of(text, 65)).log_probs
    committed(target, drafter, text, 50)
    assert worst(drafter.draft(context_of(text, 65)).log_probs, expected) <= BOUND
    cache = target.new_cache()
    drafter.start(target)
    for part in (text[:254], text[254:]):
        chunk = np.array(part, dtype=np.int32)
        result = target.forward(chunk, cache, taps=drafter.tap_names)
        cache.commit()
        drafter.commit(chunk, result.taps)
        last = drafter.draft(context_of(text[: cache.prefix_len], 65)).log_probs
    assert worst(last, expected) <= BOUND


# --- variants, judged by a computation without cache or backend --------------------------------
BASE = json.loads((kdnb.shipped.shipped_folder("golden", "drafter") / "config.json").read_text())


def write_drafter(folder, seed=0, **changes):
    """A random drafter for the golden target."""
    from kdnb.drafter_config import DFlashConfig
    from kdnb.drafters.dflash import expected_tensors

    config = {**BASE, **changes}
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_tensors(DFlashConfig.from_dict(config)).items():
        values = rng.standard_normal(shape)
        tensors[name] = (1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(shape[1])).astype(
            np.float32
        )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return config, {name: value.astype(np.float64) for name, value in tensors.items()}


def naive_draft(config, w, embed, lm_head, features, block_ids):
    """Section by section as the format's description says, in float64, everything recomputed."""
    dim, eps = config["head_dim"], config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    rows = len(features)

    def norm(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    pairs = np.arange(dim // 2)
    freq = config["rope_theta"] ** -(2 * pairs / dim)
    factor = 1.0
    if scaling:
        border = [
            dim
            * np.log(scaling["original_max_position_embeddings"] / (r * 2 * np.pi))
            / 2
            / np.log(config["rope_theta"])
            for r in (scaling["beta_fast"], scaling["beta_slow"])
        ]
        low, high = max(np.floor(border[0]), 0), min(np.ceil(border[1]), dim - 1)
        ramp = np.clip((pairs - low) / (high - low), 0, 1)
        freq = ramp * freq / scaling["factor"] + (1 - ramp) * freq
        # without mscale keys the amplitude is on cos and sin; with two equal ones it cancels there
        factor = 1.0 if "mscale" in scaling else 0.1 * np.log(scaling["factor"]) + 1
        factor = scaling.get("attention_factor", factor)

    def rotate(x, positions):  # x [rows, heads, dim]
        angle = positions[:, None, None] * freq
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def split(x, weight):
        return norm(x.reshape(len(x), -1, dim), weight)

    context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    h = embed[block_ids]
    positions = np.arange(rows + len(block_ids))
    for layer, kind in enumerate(config["layer_types"]):
        p = f"layers.{layer}."
        a = p + "self_attn."
        x = norm(h, w[p + "input_layernorm.weight"])
        both = np.concatenate([context, x])
        q = rotate(split(x @ w[a + "q_proj.weight"].T, w[a + "q_norm.weight"]), positions[rows:])
        k = rotate(split(both @ w[a + "k_proj.weight"].T, w[a + "k_norm.weight"]), positions)
        v = (both @ w[a + "v_proj.weight"].T).reshape(len(both), kv_heads, dim)
        out = np.zeros((len(x), heads, dim))
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, group].T / np.sqrt(dim)
            if kind == "sliding_attention":
                far = np.abs(positions[rows:, None] - positions[None]) >= config["sliding_window"]
                scores[far] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, group]
        h = h + out.reshape(len(x), -1) @ w[a + "o_proj.weight"].T
        x = norm(h, w[p + "post_attention_layernorm.weight"])
        gate = x @ w[p + "mlp.gate_proj.weight"].T
        h = (
            h
            + (gate / (1 + np.exp(-gate)) * (x @ w[p + "mlp.up_proj.weight"].T))
            @ w[p + "mlp.down_proj.weight"].T
        )
    return (norm(h, w["norm.weight"]) @ lm_head.T)[1:]


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "as shipped": {},
    "sliding": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
    "sliding through the block": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3},
    "yarn": {"rope_scaling": YARN},
    "yarn as Kimi's": {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    "yarn with a given amplitude": {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    "yarn in the new spelling": {"rope_scaling": None, "rope_parameters": {**YARN, "rope_theta": 10000.0}},
    "another base": {"rope_theta": 50000.0},
    "one kv head": {"num_key_value_heads": 1},
    "as many kv heads": {"num_key_value_heads": 4},
    "heads wider than the model": {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 48},
    "many narrow heads": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6},
    "block of 2": {"block_size": 2},
    "one tap twice": {"dflash_config": {"mask_token_id": 256, "target_layer_ids": [1, 1]}},
    "another mask token": {"dflash_config": {"mask_token_id": 10, "target_layer_ids": [1, 2]}},
    "three layers, mixed": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 17,
    },
    "sliding window of one": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1},
    "sliding window unused": {"layer_types": ["full_attention"] * 2, "sliding_window": 2},
    "three taps": {"dflash_config": {"mask_token_id": 256, "target_layer_ids": [3, 0, 1]}},
    "one layer": {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_against_naive_float64(pair, tmp_path, variant):
    target, _ = pair
    config, weights = write_drafter(tmp_path / "d", **VARIANTS[variant])
    drafter = kdnb.load_drafter(tmp_path / "d", target)
    prompt = FACTS["prompts"][4]["ids"]  # 85 tokens: longer than every window and YaRN's first context
    result = committed(target, drafter, prompt, 9)
    whole = target.forward(prompt, target.new_cache(), taps=drafter.tap_names)
    assert result is not None
    features = np.concatenate([whole.taps[name] for name in drafter.tap_names], axis=1).astype(np.float64)
    block = [65, *[config["dflash_config"]["mask_token_id"]] * (config["block_size"] - 1)]
    expected = naive_draft(
        config,
        weights,
        target.tensors["model.embed_tokens.weight"].read().astype(np.float64),
        target.tensors["lm_head.weight"].read().astype(np.float64),
        features,
        block,
    )
    draft = drafter.draft(context_of(prompt, 65))
    assert draft.max_depth == config["block_size"] - 1
    assert worst(draft._logits, expected) <= BOUND * max(1.0, float(np.abs(expected).max()))


def test_the_amplitude_of_yarn_can_be_chosen(pair, tmp_path):
    """Engines disagree on cos and sin's factor for some checkpoints: attention_factor decides."""
    target, _ = pair
    prompt = FACTS["prompts"][1]["ids"]
    drafts = {}
    for name, scaling in (("derived", YARN), ("given", {**YARN, "attention_factor": 1.0})):
        write_drafter(tmp_path / name, rope_scaling=scaling)
        drafter = DFlash.load(tmp_path / name, target)
        committed(target, drafter, prompt)
        drafts[name] = drafter.draft(context_of(prompt, 65)).log_probs
    assert worst(drafts["derived"], drafts["given"]) > 1e-3
    for name in ("derived", "given"):  # the argument goes over the config, whatever that says
        drafter = DFlash.load(tmp_path / name, target, attention_factor=1.0)
        assert drafter.config.rope.attention_scaling == 1.0
        committed(target, drafter, prompt)
        np.testing.assert_array_equal(drafter.draft(context_of(prompt, 65)).log_probs, drafts["given"])


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_amplitude_that_cannot_be_used_is_refused(pair, tmp_path, value):
    target, _ = pair
    write_drafter(tmp_path / "d", rope_scaling=YARN)
    with pytest.raises(ConfigError, match="attention_factor is .*; use a positive number, or None"):
        DFlash.load(tmp_path / "d", target, attention_factor=value)


def test_an_amplitude_without_yarn_is_refused(pair):
    target, _ = pair
    with pytest.raises(ConfigError, match='attention_factor is 1.4 but the rope type is "default"'):
        DFlash.load(kdnb.shipped.shipped_folder("golden", "drafter"), target, attention_factor=1.4)


def test_bfloat16_in_two_shards_is_read_as_its_values(pair, tmp_path):
    """As published drafters are stored."""
    import ml_dtypes

    target, _ = pair
    write_drafter(tmp_path / "d")
    short = {k: v.astype(ml_dtypes.bfloat16) for k, v in load_file(tmp_path / "d/model.safetensors").items()}
    save_file({k: v.astype(np.float32) for k, v in short.items()}, tmp_path / "d/model.safetensors")
    (tmp_path / "s").mkdir()
    (tmp_path / "s/config.json").write_text((tmp_path / "d/config.json").read_text())
    names = sorted(short)
    files = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        save_file({name: short[name] for name in names if files[name] == file}, tmp_path / "s" / file)
    index = json.dumps({"metadata": {}, "weight_map": files})
    (tmp_path / "s/model.safetensors.index.json").write_text(index)
    prompt = FACTS["prompts"][1]["ids"]
    drafts = []
    for folder in ("d", "s"):
        drafter = kdnb.load_drafter(tmp_path / folder, target)
        committed(target, drafter, prompt)
        drafts.append(drafter.draft(context_of(prompt, 65)).log_probs)
    np.testing.assert_array_equal(*drafts)

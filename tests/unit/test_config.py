"""Reading configs: both spellings, defaults, known numbers, refusals by message."""

import json
import math

import numpy as np
import pytest

from kdnb.config import REFUSED, TargetConfig
from kdnb.drafter_config import DFlashConfig, default_layer_ids
from kdnb.errors import ConfigError
from kdnb.rope_config import RopeConfig
from tests.support.goldens import DATA
from tests.support.models import BASE

YARN = {
    "type": "yarn",
    "factor": 64.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
V3 = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}


def config(**changes):
    return TargetConfig.from_dict({key: v for key, v in {**BASE, **changes}.items() if v != "absent"})


@pytest.mark.parametrize(
    ("theta", "scaling", "blend", "scale"),
    [
        (5e4, {**YARN, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0}, (19, 20), 0.130861),  # Kimi K2
        (5e4, {**YARN, "beta_fast": 32.0, "beta_slow": 1.0}, (8, 20), 0.144680),  # Kimi K2.5, K2.6
        (1e4, {**YARN, "factor": 40.0, "beta_fast": 32, "beta_slow": 1}, (10, 23), 0.135234),  # DeepSeek-V3
        (
            1e4,
            {**YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707},
            (10, 23),
            0.114721,
        ),  # V2-Lite
    ],
)
def test_yarn_of_the_released_models(theta, scaling, blend, scale):
    ours = config(rope_theta=theta, rope_scaling=scaling, **V3)
    low, high = ours.rope.blend_range(64)
    assert (low, math.ceil(high - 0.01)) == blend
    assert ours.softmax_scale == pytest.approx(scale, abs=1e-6)
    assert ours.rope.attention_scaling == 1.0


def test_without_mscales_the_amplitude_goes_to_cos_and_sin():
    rope = RopeConfig.from_dict({"rope_scaling": {"type": "yarn", "factor": 64.0}})
    assert rope.attention_scaling == pytest.approx(1.4159, abs=1e-4)
    assert rope.softmax_mscale == 1.0
    fixed = RopeConfig.from_dict({"rope_scaling": {"type": "yarn", "factor": 64.0, "attention_factor": 1.25}})
    assert fixed.attention_scaling == 1.25


def test_mscale_all_dim_and_not_mscale_scales_the_softmax():
    rope = RopeConfig.from_dict({"rope_scaling": {**YARN, "mscale": 0.5}})
    assert rope.softmax_mscale == pytest.approx(1.415888, abs=1e-6)


def test_both_spellings_give_the_same_rope_and_parameters_win():
    old = RopeConfig.from_dict({"rope_theta": 5e4, "rope_scaling": {**YARN}})
    new = RopeConfig.from_dict(
        {"rope_theta": 1.0, "rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 5e4}}
    )
    assert old == new
    assert RopeConfig.from_dict({"rope_theta": 7e3}).rope_theta == 7e3


def test_inv_freq_is_blended_between_kept_and_divided():
    rope = RopeConfig.from_dict(
        {"rope_theta": 5e4, "rope_scaling": {**YARN, "beta_fast": 32, "beta_slow": 1}}
    )
    plain = RopeConfig(rope_theta=5e4).inv_freq(64)
    ours = rope.inv_freq(64)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours[:9], plain[:9], rtol=1e-6)
    np.testing.assert_allclose(ours[20:], plain[20:] / 64, rtol=1e-5)
    middle = (14 - 8) / (20 - 8)
    np.testing.assert_allclose(ours[14], plain[14] * (middle / 64 + 1 - middle), rtol=1e-5)


def test_kimi_k25_is_read_from_its_text_config():
    folder = DATA / "targets" / "kimi_k25_int4"
    ours = TargetConfig.from_folder(folder)
    assert (ours.model_type, ours.tensor_prefix) == ("kimi_k2", "language_model.")
    assert ours.rope.factor == 64
    assert ours.stop_ids == (2,)


def test_stop_ids_are_the_union_of_all_places():
    ours = TargetConfig.from_dict({**BASE, "eos_token_id": [5, 7]}, {"eos_token_id": 9})
    assert ours.stop_ids == (5, 7, 9)
    assert config().stop_ids == ()


def test_defaults_by_model_type():
    v3 = config()
    assert (v3.scoring_func, v3.topk_method, v3.rope_interleave) == ("sigmoid", "noaux_tc", True)
    v2 = config(model_type="deepseek_v2")
    assert (v2.scoring_func, v2.topk_method, v2.norm_topk_prob) == ("softmax", "greedy", False)
    assert config(model_type="youtu", n_routed_experts="absent").n_routed_experts is None
    assert not config(model_type="youtu").is_moe(1)
    assert [config().is_moe(layer) for layer in (0, 1)] == [False, True]
    assert config(rms_norm_eps=1e-5).lora_norm_eps == 1e-6
    assert config(lora_norm_eps=1e-5).lora_norm_eps == 1e-5
    assert config(head_dim=192).qk_rope_head_dim == 8
    assert config(model_type="glm4_moe_lite", first_k_dense_replace="absent").first_k_dense_replace == 1
    assert config(mlp_layer_types=["dense", "dense"]).first_k_dense_replace == 2
    assert config(mlp_layer_types=["sparse", "sparse"]).is_moe(0)
    assert config(n_group=None, topk_group=None).n_group == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not an MLA model.*deepseek_v3"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": "kimi_k25"}, "no text_config"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; kdnb computes silu"),
        ({"rope_scaling": {"type": "longrope"}}, 'rope type "longrope"'),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling has no factor"),
        ({"rope_scaling": 4}, "rope_scaling is 4"),
        ({"kv_lora_rank": "absent"}, "config.json has no kv_lora_rank"),
        ({"n_routed_experts": "absent"}, "config.json has no n_routed_experts"),
        ({"vocab_size": "absent"}, "config.json has no vocab_size"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be an integer"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be 1 or more"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'; it must be a finite number"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; it must be even"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9 but n_routed_experts is 4"),
        ({"n_group": 3}, "n_routed_experts is 4, which n_group 3 does not divide"),
        ({"topk_group": 2}, "topk_group is 2 but n_group is 1"),
        ({"n_group": 4, "num_experts_per_tok": 1}, "n_group 4 leaves 1 expert"),
        ({"n_group": 2, "num_experts_per_tok": 3}, "topk_group leaves 2 experts"),
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        ({"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types is .'sparse', 'dense'."),
        ({"mlp_layer_types": ["dense"]}, "one entry per layer"),
        ({"first_k_dense_replace": "absent"}, "config.json has no first_k_dense_replace"),
        ({"scoring_func": "relu"}, "scoring_func is 'relu'"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'; it must hold integers"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_other_architectures_are_refused_by_name_with_the_reason(model_type):
    with pytest.raises(ConfigError, match=f'"{model_type}" is not supported: it'):
        config(model_type=model_type)


def test_broken_files(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        TargetConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.json is not in"):
        TargetConfig.from_folder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not a folder"):
        TargetConfig.from_folder(path)
    with pytest.raises(ConfigError, match="is not JSON .line 1, column 2"):
        TargetConfig.from_folder(tmp_path)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="holds a list"):
        TargetConfig.from_folder(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        TargetConfig.from_folder(tmp_path)


DFLASH = json.loads((DATA.parents[1] / "kdnb/checkpoints/golden/drafter/config.json").read_text())


def drafter(**changes):
    return DFlashConfig.from_dict({key: v for key, v in {**DFLASH, **changes}.items() if v != "absent"})


def test_the_golden_drafters_config():
    ours = drafter()
    assert (ours.block_size, ours.mask_token_id, ours.target_layer_ids) == (8, 256, (1, 2))
    assert ours.layer_types == ("full_attention", "full_attention")


def test_default_layer_ids():
    assert default_layer_ids(61, 6) == (1, 12, 24, 35, 47, 58)
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(4, 2) == (1, 1)
    assert default_layer_ids(7, 1) == (3,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": "absent"}, "has no dflash_config.*DFlashDraftModel"),
        ({"block_size": 1}, "block_size is 1.*2 or more"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers but num_hidden_layers is 2"),
        ({"layer_types": ["linear", "linear"]}, "layer_types has 'linear'"),
        ({"layer_types": ["sliding_attention"] * 2}, "no sliding_window"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, which num_key_value_heads 3 does not divide"),
        ({"head_dim": 31}, "head_dim is 31; it must be even"),
        ({"dflash_config": {"mask_token_id": 256, "causal": True}}, "causal is true"),
        (
            {"dflash_config": {"mask_token_id": 256, "projector_type": "domino"}},
            "projector_type asks for another",
        ),
        ({"dflash_config": {"mask_token_id": 256, "conv_kernel_size": 4}}, "DFlash2"),
        ({"dflash_config": {"mask_token_id": 256, "attention_mode": "mla"}}, 'attention_mode is "mla"'),
        ({"dflash_config": {"mask_token_id": 256, "use_swa": True}}, "use_swa is True"),
        (
            {"dflash_config": {"mask_token_id": 256, "use_aux_hidden_state": False}},
            "use_aux_hidden_state is False",
        ),
        ({"dflash_config": {}}, "dflash_config has no mask_token_id"),
        ({"draft_vocab_size": 100}, "reduced draft vocabulary"),
    ],
)
def test_drafter_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        drafter(**changes)

"""Small random checkpoints in Hugging Face format, written by the tests that need them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kdnb.checkpoint import expected_tensors
from kdnb.config import TargetConfig

BASE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "vocab_size": 40,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": None,
}


def write_checkpoint(folder: Path, seed: int = 0, scale: float = 0.5, **changes: Any) -> Path:
    """Write a random checkpoint; `changes` go over BASE, None removes nothing."""
    config = {**BASE, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_tensors(TargetConfig.from_dict(config)).items():
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.endswith("embed_tokens.weight"):
            pass
        elif len(shape) == 2:
            values *= scale * 2 / np.sqrt(shape[1])
        else:
            values *= 0.1
        tensors[name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder

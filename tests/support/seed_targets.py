"""The two seed shapes: random targets that transformers can load too."""

from pathlib import Path
from typing import Any

from tests.support.models import write_checkpoint

PROMPT = [7, 300, 42, 11, 5, 480, 93, 12]
NUM_TOKENS = 25  # the prompt's own logits choose one, three rounds of a perfect block of 8 the rest

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 96,
    "max_position_embeddings": 1024,
    "dtype": "float32",
    "architectures": ["DeepseekV3ForCausalLM"],
}
SHAPES: dict[str, dict[str, Any]] = {
    "hidden256": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "n_routed_experts": 8,
        "first_k_dense_replace": 1,
    },
    "hidden192": {
        "hidden_size": 192,
        "intermediate_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "kv_lora_rank": 48,
        "n_routed_experts": 6,
        "first_k_dense_replace": 2,
    },
}


def write_seed_target(folder: Path, name: str) -> Path:
    """Write one of SHAPES as a Hugging Face folder."""
    return write_checkpoint(folder / name, seed=len(name), **COMMON, **SHAPES[name])

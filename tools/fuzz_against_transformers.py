"""Compare the forward with transformers on random small models of every architecture it can load.

Use: pip install ".[test,reference]" && python tools/fuzz_against_transformers.py [SEED] [COUNT]

Draws odd sizes and every rule that a config can ask for, writes a random checkpoint, and runs 100 tokens
through both programs. Prints each case that differs; the exit status is the number of them (at most 100).
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import kdnb  # noqa: E402
from tests.support.models import write_checkpoint  # noqa: E402

BOUND = 2e-5  # of the median row: a router's near-tie may send single tokens elsewhere
NUM_TOKENS = 100


def draw_config(rng: random.Random) -> dict[str, Any]:
    """A random config that transformers accepts."""
    model_type = rng.choice(["deepseek_v3", "deepseek_v3", "deepseek_v2", "glm4_moe_lite"])
    heads, experts = rng.choice([2, 3, 5]), rng.choice([4, 6, 8, 12])
    config = {
        "model_type": model_type,
        "dtype": "float32",
        "hidden_size": rng.choice([60, 120]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "qk_nope_head_dim": rng.choice([8, 12]),
        "qk_rope_head_dim": rng.choice([4, 8]),
        "v_head_dim": rng.choice([6, 8, 14]),
        "kv_lora_rank": rng.choice([16, 20]),
        "q_lora_rank": rng.choice([None, 24, 18]),
        "moe_intermediate_size": rng.choice([12, 16]),
        "n_routed_experts": experts,
        "n_shared_experts": rng.choice([1, 2]),
        "num_experts_per_tok": rng.choice([1, 2]),
        "first_k_dense_replace": 1 if model_type == "glm4_moe_lite" else rng.choice([0, 1, 5]),
        "num_hidden_layers": rng.choice([1, 2, 3]),
        "norm_topk_prob": rng.choice([True, False]),
        "routed_scaling_factor": rng.choice([1.0, 2.5]),
        "rms_norm_eps": rng.choice([1e-6, 1e-5]),
        "tie_word_embeddings": rng.choice([True, False]),
        "attention_bias": rng.choice([True, False]),
        "rope_scaling": draw_rope(rng),
    }
    if rng.random() < 0.5:
        config |= {"n_group": 2, "topk_group": 1}
    if model_type == "deepseek_v2":
        method = rng.choice(["greedy", "group_limited_greedy"])
        config |= {"scoring_func": "softmax", "topk_method": method, "norm_topk_prob": False}
    else:
        config["rope_interleave"] = rng.choice([True, False])
    return config


def draw_rope(rng: random.Random) -> dict[str, Any] | None:
    """None, or YaRN with one of the ways to say its amplitude."""
    amplitudes: list[dict[str, float]] = [
        {},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 0.5},
        {"attention_factor": 1.3},
    ]
    yarn = {"type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn["original_max_position_embeddings"] = 64
    return rng.choice([None, *({**yarn, **amplitude} for amplitude in amplitudes)])


def main(seed: int, count: int) -> int:
    """Run `count` cases; return how many differ."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rng, wrong = random.Random(seed), 0
    for case in range(count):
        config = draw_config(rng)
        ids = np.random.default_rng(case).integers(0, 40, NUM_TOKENS)
        with tempfile.TemporaryDirectory() as scratch:
            folder = write_checkpoint(Path(scratch) / "model", seed=case, **config)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
            ).eval()
            with torch.no_grad():
                theirs = model(torch.tensor(ids[None])).logits[0].numpy()
            ours = kdnb.load_target(folder).logits(ids)
        scale = max(1.0, float(np.sqrt((theirs**2).mean())))
        worst = np.abs(ours - theirs).max(axis=1) / scale
        if np.median(worst) > BOUND:
            wrong += 1
            print(f"case {case}: median {np.median(worst):.1e}, worst {worst.max():.1e}: {config}")
    print(f"{wrong} of {count} cases differ")
    return min(wrong, 100)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:3]]
    sys.exit(main(*numbers, *(0, 60)[len(numbers) :]))

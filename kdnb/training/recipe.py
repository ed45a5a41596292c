"""Every number of the recipe, fixed before training."""

from dataclasses import dataclass, field, replace
from typing import Any

from kdnb.config import TargetConfig
from kdnb.drafter_config import DFlashConfig

SPECIALS = ("<|eos|>", "<|pad|>", "<|mask|>")  # ids 0, 1, 2; eos also stands between documents
EOS_ID, PAD_ID, MASK_ID = range(3)
MAX_TOTAL_BYTES = 16_000_000  # target and drafter folders together

TARGET: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": EOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 448,
    "kv_lora_rank": 64,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 192,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 8,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 80,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_interleave": True,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 1024,
    },
    "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": True,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "use_cache": True,
    "v_head_dim": 32,
}
DRAFTER: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "bos_token_id": EOS_ID,
    "eos_token_id": EOS_ID,
    "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 4, 6]},
    "dtype": "bfloat16",
    "head_dim": 32,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
}


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what, and for how long.

    Args:
        target: The target's config.json without vocab_size, which is the tokenizer's.
        drafter: The drafter's config.json without the sizes that are the target's.
        vocab_size: Ids of the tokenizer, special ones included; fewer if the corpus is too small.
        max_corpus_bytes: Source text read at the most.
        held_out_share: Share of the text in packages that are held out whole.
        tokenizer_bytes: Source text that the tokenizer is trained on.
        goal_bits_per_byte: On held-out packages, INT4; stated before training.
        batch_tokens: Tokens of one step of the target.
        row_tokens: Length of a training row before quantization.
        long_row_tokens: Length with quantization on: the context YaRN stretches to.
        quantized_from: Progress from which experts are trained through INT4.
        learning_rate: Peak, target.
        bias_rate: Step of the router's correction bias, until quantization is on.
        sample_rows: Rows of text that the target writes at once for the drafter.
        sample_batches: How many times it does, at the most.
        sample_tokens: Tokens of such a row, its prompt included.
        min_distinct: Rows with a smaller share of distinct 4-grams loop, and are dropped.
        draft_rows: Rows of one step of the drafter.
        anchors: Blocks per row.
        draft_learning_rate: Peak, drafter.
        loss_decay: A token at depth d of a block weighs exp(-(d - 1) / loss_decay).
        shares: Shares of the time for the target, the text it writes, and the drafter; the rest is for
            the corpus and the evaluation.
        max_steps: Steps of target and drafter at the most; the time ends training otherwise.
        prompts: Held-out prompts of the evaluation.
        prompt_tokens: Tokens of each.
        new_tokens: Tokens decoded after each.
        budgets: Node budgets of the draft trees measured.
    """

    name: str = "tiny"
    target: dict[str, Any] = field(default_factory=lambda: TARGET)
    drafter: dict[str, Any] = field(default_factory=lambda: DRAFTER)
    vocab_size: int = 4096
    max_corpus_bytes: int = 400_000_000
    held_out_share: float = 0.02
    tokenizer_bytes: int = 60_000_000
    goal_bits_per_byte: float = 1.1
    batch_tokens: int = 131_072
    row_tokens: int = 1024
    long_row_tokens: int = 4096
    quantized_from: float = 0.8
    learning_rate: float = 3e-3
    bias_rate: float = 1e-3
    sample_rows: int = 4096
    sample_batches: int = 48
    sample_tokens: int = 512
    min_distinct: float = 0.3
    draft_rows: int = 256
    anchors: int = 32
    draft_learning_rate: float = 2e-3
    loss_decay: float = 7.0
    shares: tuple[float, float, float] = (0.54, 0.05, 0.23)
    max_steps: int = 1_000_000
    prompts: int = 50
    prompt_tokens: int = 96
    new_tokens: int = 128
    budgets: tuple[int, ...] = (8, 16, 32, 64, 128, 256)

    def target_json(self, vocab_size: int) -> dict[str, Any]:
        """The target's config.json, without its quantization_config."""
        return {**self.target, "vocab_size": vocab_size}

    def target_config(self, vocab_size: int) -> TargetConfig:
        """The same, as kdnb reads it."""
        return TargetConfig.from_dict(self.target_json(vocab_size))

    def drafter_json(self, target: TargetConfig) -> dict[str, Any]:
        """The drafter's config.json."""
        return {
            **self.drafter,
            "hidden_size": target.hidden_size,
            "layer_types": ["full_attention"] * self.drafter["num_hidden_layers"],
            "max_position_embeddings": target.max_position_embeddings,
            "num_target_layers": target.num_hidden_layers,
            "vocab_size": target.vocab_size,
        }

    def drafter_config(self, target: TargetConfig) -> DFlashConfig:
        """The same, as kdnb reads it."""
        return DFlashConfig.from_dict(self.drafter_json(target))


TINY = Recipe()
SMOKE = replace(  # every step of the recipe in about a minute of a laptop's CPU
    TINY,
    name="smoke",
    target=TARGET
    | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "kv_lora_rank": 32,
        "max_position_embeddings": 512,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "rope_parameters": TARGET["rope_parameters"] | {"original_max_position_embeddings": 128},
    },
    drafter=DRAFTER
    | {
        "block_size": 8,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 2]},
        "head_dim": 16,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
    },
    vocab_size=512,
    max_corpus_bytes=1_500_000,
    held_out_share=0.05,
    tokenizer_bytes=500_000,
    goal_bits_per_byte=4.0,
    batch_tokens=2048,
    row_tokens=64,
    long_row_tokens=128,
    sample_rows=64,
    sample_batches=2,
    sample_tokens=96,
    min_distinct=0.05,
    draft_rows=16,
    anchors=8,
    loss_decay=4.0,
    max_steps=120,
    prompts=3,
    prompt_tokens=32,
    new_tokens=16,
    budgets=(8, 16),
)
RECIPES = {recipe.name: recipe for recipe in (TINY, SMOKE)}

"""Which tensors a target's checkpoint holds."""

import re
from collections.abc import Iterator

from kdnb.config import TargetConfig

Shape = tuple[int, ...]
OTHER_PARTS = ("vision_tower.", "mm_projector.", "multi_modal_projector.")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def expected_tensors(config: TargetConfig) -> dict[str, Shape]:
    """Name (without the checkpoint's prefix) and shape of every tensor a target needs."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_hidden_layers):
        prefix = f"model.layers.{index}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        shapes.update((prefix + "self_attn." + n, s) for n, s in _attention(config))
        feed_forward = _moe(config) if config.is_moe(index) else _mlp(hidden, config.intermediate_size)
        shapes.update((prefix + "mlp." + n, s) for n, s in feed_forward)
    return shapes


def is_ignored(config: TargetConfig, name: str) -> bool:
    """Whether a tensor may be in the file though the forward does not use it.

    Multi-token-prediction layers (at or beyond num_hidden_layers), vision parts, stored rotary
    frequencies, and an lm_head beside tied embeddings.
    """
    layer = LAYER.search(name)
    if layer and int(layer.group(1)) >= config.num_hidden_layers:
        return True
    if name.startswith(OTHER_PARTS) or name.endswith("rotary_emb.inv_freq"):
        return True
    return name == "lm_head.weight" and config.tie_word_embeddings


def _attention(config: TargetConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config.hidden_size, config.num_attention_heads
    queries = heads * config.qk_head_dim
    if config.q_lora_rank is None:
        yield "q_proj.weight", (queries, hidden)
    else:
        yield "q_a_proj.weight", (config.q_lora_rank, hidden)
        yield "q_a_layernorm.weight", (config.q_lora_rank,)
        yield "q_b_proj.weight", (queries, config.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", (config.cache_width, hidden)
    yield "kv_a_layernorm.weight", (config.kv_lora_rank,)
    per_head = config.qk_nope_head_dim + config.v_head_dim
    yield "kv_b_proj.weight", (heads * per_head, config.kv_lora_rank)
    yield "o_proj.weight", (hidden, heads * config.v_head_dim)
    if config.attention_bias:
        if config.q_lora_rank is not None:
            yield "q_a_proj.bias", (config.q_lora_rank,)
        yield "kv_a_proj_with_mqa.bias", (config.cache_width,)
        yield "o_proj.bias", (hidden,)


def _mlp(hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (inner, hidden)
    yield "up_proj.weight", (inner, hidden)
    yield "down_proj.weight", (hidden, inner)


def _moe(config: TargetConfig) -> Iterator[tuple[str, Shape]]:
    experts, hidden = config.n_routed_experts or 0, config.hidden_size
    inner = config.moe_intermediate_size
    yield "gate.weight", (experts, hidden)
    if config.topk_method == "noaux_tc":
        yield "gate.e_score_correction_bias", (experts,)
    for expert in range(experts):
        for name, shape in _mlp(hidden, inner):
            yield f"experts.{expert}.{name}", shape
    if config.n_shared_experts:
        for name, shape in _mlp(hidden, inner * config.n_shared_experts):
            yield f"shared_experts.{name}", shape

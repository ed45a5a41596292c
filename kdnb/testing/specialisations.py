"""Constants that every kernel is compiled with to be judged: the shapes of Kimi K2.6 and a draft block."""

from kdnb.kernels.source import Constant, KernelSource

LORA: dict[str, Constant] = {"KV_LORA_RANK": 512, "ROPE_DIM": 64}
HEADS: dict[str, Constant] = {"HEADS": 64, "NOPE_DIM": 128, "V_HEAD_DIM": 128}
TREE: dict[str, Constant] = {"NODE_BUDGET": 256, "MAX_DEPTH": 7}
SPECIALISATIONS: dict[str, dict[str, Constant]] = {
    "append_latent": {**LORA, "ROPE_INTERLEAVED": True},
    "cache_compact": {},
    "decode_round": TREE,
    "draft_attention": {"HEADS": 64, "KV_HEADS": 8, "HEAD_DIM": 128},
    "embed": {},
    "experts": {"IS_PACKED": True, "GROUP": 32, "SCALE_IS_BF16": True},
    "head_norm_rope": {},
    "linear": {"OUT_IS_FLOAT": False},
    "mla_query": {**LORA, **HEADS, "ROPE_INTERLEAVED": True},
    "mla_value": {**HEADS, "KV_LORA_RANK": 512},
    "rms_norm": {},
    "rope": {},
    "router": {
        "NUM_EXPERTS": 384,
        "TOP_K": 8,
        "N_GROUP": 1,
        "TOPK_GROUP": 1,
        "SIGMOID": True,
        "GROUPED": False,
        "NOAUX_TC": True,
        "NORM_TOPK_PROB": True,
        "ROUTED_SCALING_FACTOR": 2.827,
    },
    "rows": {},
    "sample_token": {},
    "swiglu": {},
    "top_k": {},
    "tree_accept": TREE,
    "tree_build": {**TREE, "K": 256, "SORT_SIZE": 2048, "IN_SHARED": True, "THREADS": 512},
    "verify_attention": {**LORA, "HEADS": 64, "KEYS_PER_SPLIT": 64},
}
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def specialised(name: str, real_is_bf16: bool = True) -> KernelSource:
    """A kernel's source at those shapes."""
    return KernelSource.of(name, {**SPECIALISATIONS[name], "REAL_IS_BF16": real_is_bf16})

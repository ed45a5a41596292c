"""A target's config: every size and rule of its forward, read from config.json."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kdnb.config_reader import REQUIRED, ConfigReader, is_folder, read_json_object
from kdnb.errors import ConfigError
from kdnb.rope_config import RopeConfig

MAX_LAYERS, MAX_EXPERTS = 10_000, 100_000  # beyond is a damaged file, and naming the tensors takes for ever
LORA_NORM_EPS = 1e-6  # the models' own code builds these norms with the class default
MODEL_TYPES = (
    "deepseek_v3",
    "kimi_k2",
    "kimi_k25",
    "deepseek_v2",
    "glm4_moe_lite",
    "sarvam_mla",
    "youtu",
)
REFUSED = {
    "kimi_k3": "it mixes linear attention (KDA) with other experts and another activation",
    "kimi_linear": "it mixes linear attention (KDA) into the layers",
    "deepseek_v32": "its sparse attention indexer (DSA) is not computed here",
    "glm_moe_dsa": "its sparse attention indexer (DSA) is not computed here",
    "glm5_next": "its attention is not plain MLA",
    "longcat_flash": "it has two attentions a layer and extra scale factors",
    "minicpm3": "it scales its residuals",
    "axk1": "it has a norm after the MLP",
    "axk2": "its layers differ from DeepSeek-V3's",
    "mistral4": "it scales queries by position",
    "mistral_large4": "it scales queries by position",
    "bailing_hybrid": "it mixes linear attention into the layers",
    "dots3_note": "its low-rank norms differ",
    "hy_v4": "its layers differ from DeepSeek-V3's",
}


@dataclass(frozen=True)
class TargetConfig:
    """Sizes and rules of a target; the names are the Hugging Face config's.

    Args:
        lora_norm_eps: Epsilon of q_a_layernorm and kv_a_layernorm: 1e-6 whatever rms_norm_eps says,
            unless config.json has a key `lora_norm_eps`.
        stop_ids: Union of the eos ids of config.json, its text_config and generation_config.json.
        tensor_prefix: What stands before tensor names on disk: "" or "language_model.".
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    vocab_size: int
    intermediate_size: int
    rms_norm_eps: float
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int | None
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    scoring_func: Literal["sigmoid", "softmax"]
    topk_method: Literal["noaux_tc", "greedy", "group_limited_greedy"]
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    attention_bias: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope_interleave: bool
    rope: RopeConfig
    lora_norm_eps: float = LORA_NORM_EPS
    stop_ids: tuple[int, ...] = ()
    tensor_prefix: str = ""

    def __repr__(self) -> str:
        return (
            f"TargetConfig({self.model_type}, {self.num_hidden_layers} layers, "
            f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size})"
        )

    @classmethod
    def from_folder(cls, folder: Path) -> "TargetConfig":
        """Read config.json and, where there is one, generation_config.json.

        Raises:
            ConfigError: if the folder or the file is missing, or as `from_dict`.
        """
        if not is_folder(folder):
            what = "is not a folder" if os.path.lexists(folder) else "does not exist"
            raise ConfigError(
                f"{str(folder)!r} {what}; pass a Hugging Face checkpoint folder or a shipped name."
            )
        generation = folder / "generation_config.json"
        return cls.from_dict(
            read_json_object(folder / "config.json"),
            read_json_object(generation) if generation.exists() else None,
        )

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> "TargetConfig":
        """Read a config as Hugging Face writes it.

        Args:
            config: config.json; Kimi K2.5's text_config is found inside.
            generation_config: generation_config.json or None.

        Returns:
            TargetConfig.

        Raises:
            ConfigError: if the architecture is another one, or a key is missing or cannot be used.
        """
        text, prefix = _text_config(config)
        read = ConfigReader(text, "config.json")
        model_type = _model_type(text)
        is_v2 = model_type == "deepseek_v2"
        dense = model_type == "youtu" or text.get("n_routed_experts", 0) is None
        n_routed_experts = None if dense else read.integer("n_routed_experts", least=1, most=MAX_EXPERTS)
        of_experts = 1 if dense else REQUIRED  # keys that only a mixture of experts needs
        read.choice("hidden_act", ("silu",), "silu")
        frequency = read.integer("moe_layer_freq", 1)
        if frequency != 1:
            raise ConfigError(
                f"config.json: moe_layer_freq is {frequency}; only 1 is known (every layer from "
                "first_k_dense_replace on is a mixture of experts)."
            )
        tied = ConfigReader(config, "config.json").boolean("tie_word_embeddings", None)
        scoring_func = read.choice("scoring_func", ("sigmoid", "softmax"), "softmax" if is_v2 else "sigmoid")
        topk_method = read.choice(
            "topk_method",
            ("noaux_tc", "greedy", "group_limited_greedy"),
            "greedy" if is_v2 else "noaux_tc",
        )
        self = cls(
            model_type=model_type,
            hidden_size=read.integer("hidden_size", least=1),
            num_hidden_layers=read.integer("num_hidden_layers", least=1, most=MAX_LAYERS),
            num_attention_heads=read.integer("num_attention_heads", least=1),
            vocab_size=read.integer("vocab_size", least=1),
            intermediate_size=read.integer("intermediate_size", least=1),
            rms_norm_eps=read.number("rms_norm_eps", above=0),
            q_lora_rank=read.integer("q_lora_rank", None, 1),
            kv_lora_rank=read.integer("kv_lora_rank", least=1),
            qk_nope_head_dim=read.integer("qk_nope_head_dim", least=1),
            qk_rope_head_dim=read.integer("qk_rope_head_dim", least=2),
            v_head_dim=read.integer("v_head_dim", least=1),
            n_routed_experts=n_routed_experts,
            n_shared_experts=read.integer("n_shared_experts", 0),
            num_experts_per_tok=read.integer("num_experts_per_tok", of_experts, 1),
            moe_intermediate_size=read.integer("moe_intermediate_size", of_experts, 1),
            first_k_dense_replace=0 if dense else _first_moe_layer(text, read, model_type),
            scoring_func=scoring_func,
            topk_method=topk_method,
            n_group=read.integer("n_group", 1, 1),
            topk_group=read.integer("topk_group", 1, 1),
            # transformers' DeepSeek-V2 never normalises; no released V2 asks for it
            norm_topk_prob=False if is_v2 else read.boolean("norm_topk_prob", True),
            routed_scaling_factor=read.number("routed_scaling_factor", 1.0 if dense or is_v2 else REQUIRED),
            attention_bias=read.boolean("attention_bias", False),
            tie_word_embeddings=read.boolean("tie_word_embeddings", False) if tied is None else tied,
            max_position_embeddings=read.integer("max_position_embeddings", least=1),
            rope_interleave=read.boolean("rope_interleave", True),
            rope=RopeConfig.from_dict(text),
            lora_norm_eps=read.number("lora_norm_eps", LORA_NORM_EPS, above=0),
            stop_ids=_stop_ids(config, text, generation_config or {}),
            tensor_prefix=prefix,
        )
        self._check()
        return self

    def is_moe(self, layer: int) -> bool:
        """Whether a layer is a mixture of experts."""
        return self.n_routed_experts is not None and layer >= self.first_k_dense_replace

    @property
    def qk_head_dim(self) -> int:
        """Query columns per head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache_width(self) -> int:
        """Values per token and layer in the latent cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on attention scores: qk_head_dim ** -0.5, times mscale ** 2 under YaRN."""
        return float(self.qk_head_dim**-0.5 * self.rope.softmax_mscale**2)

    def _check(self) -> None:
        if self.qk_rope_head_dim % 2:
            raise ConfigError(f"config.json: qk_rope_head_dim is {self.qk_rope_head_dim}; it must be even.")
        experts = self.n_routed_experts
        if experts is None or not self.is_moe(self.num_hidden_layers - 1):
            return
        if self.num_experts_per_tok > experts:
            raise ConfigError(
                f"config.json: num_experts_per_tok is {self.num_experts_per_tok} but "
                f"n_routed_experts is {experts}."
            )
        if experts % self.n_group:
            raise ConfigError(
                f"config.json: n_routed_experts is {experts}, which n_group {self.n_group} does not divide."
            )
        if self.topk_group > self.n_group:
            raise ConfigError(f"config.json: topk_group is {self.topk_group} but n_group is {self.n_group}.")
        reachable = self.topk_group * (experts // self.n_group)
        if self.n_group > 1 and self.num_experts_per_tok > reachable:
            raise ConfigError(
                f"config.json: num_experts_per_tok is {self.num_experts_per_tok} but topk_group "
                f"leaves {reachable} experts to choose from."
            )
        if self.n_group > 1 and self.topk_method == "noaux_tc" and experts // self.n_group < 2:
            raise ConfigError(
                f"config.json: n_group {self.n_group} leaves {experts // self.n_group} expert per "
                "group; noaux_tc adds up a group's two best."
            )


def _text_config(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    if config.get("model_type") != "kimi_k25":
        return config, ""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError("config.json: model_type is kimi_k25 but there is no text_config object.")
    return text, "language_model."


def _model_type(text: Mapping[str, Any]) -> str:
    model_type = text.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"model_type {model_type!r} is not an MLA model that kdnb knows; it must be a string."
        )
    if model_type in REFUSED:
        raise ConfigError(f'model_type "{model_type}" is not supported: {REFUSED[model_type]}.')
    if model_type not in MODEL_TYPES:
        raise ConfigError(
            f"model_type {model_type!r} is not an MLA model that kdnb knows; it loads "
            f"{', '.join(MODEL_TYPES)}."
        )
    return str(model_type)


def _first_moe_layer(text: Mapping[str, Any], read: ConfigReader, model_type: str) -> int:
    """first_k_dense_replace, or the number of leading "dense" in mlp_layer_types, which goes before it."""
    kinds = text.get("mlp_layer_types")
    if kinds is None:
        default = 1 if model_type == "glm4_moe_lite" else REQUIRED
        first: int = read.integer("first_k_dense_replace", default)
        return first
    num_dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * num_dense + ["sparse"] * (read.integer("num_hidden_layers") - num_dense):
        raise ConfigError(
            f"config.json: mlp_layer_types is {kinds!r}; kdnb computes dense layers first, then sparse "
            "ones, one entry per layer."
        )
    return num_dense


def _stop_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    ids: set[int] = set()
    for config in configs:
        ids.update(ConfigReader(config, "config.json").integers("eos_token_id"))
    return tuple(sorted(ids))

"""The weights of a target as backend handles, by what they are for."""

from collections.abc import Mapping
from dataclasses import dataclass

from kdnb.backends.base import Backend, Experts, ExpertTensors, Weight
from kdnb.checkpoint import StoredTensor
from kdnb.config import TargetConfig
from kdnb.errors import ConfigError


@dataclass(frozen=True)
class Attention:
    """MLA projections of one layer; q_a and q_norm are None where q_lora_rank is null."""

    q_a: Weight | None
    q_a_bias: Weight | None
    q_norm: Weight | None
    q_b: Weight  # q_proj where q_lora_rank is null
    kv_a: Weight
    kv_a_bias: Weight | None
    kv_norm: Weight
    kv_b: Weight
    o: Weight
    o_bias: Weight | None


@dataclass(frozen=True)
class Mlp:
    """A gated MLP: a dense layer's, or the shared experts as one."""

    gate: Weight
    up: Weight
    down: Weight


@dataclass(frozen=True)
class Moe:
    """Router and experts of one layer; bias is None for softmax routers, shared where there is none."""

    router: Weight
    router_bias: Weight | None
    experts: Experts
    shared: Mlp | None


@dataclass(frozen=True)
class Layer:
    """One decoder layer."""

    input_norm: Weight
    attention: Attention
    post_attention_norm: Weight
    mlp: Mlp | Moe


@dataclass(frozen=True)
class TargetWeights:
    """All weights of a target."""

    embed: Weight
    layers: tuple[Layer, ...]
    norm: Weight
    lm_head: Weight

    @classmethod
    def load(
        cls, tensors: Mapping[str, StoredTensor], config: TargetConfig, backend: Backend
    ) -> "TargetWeights":
        """Hand every tensor of a checked checkpoint to the backend."""
        load = _Loader(tensors, config, backend)
        embed = load("model.embed_tokens.weight")
        return cls(
            embed=embed,
            layers=tuple(load.layer(index) for index in range(config.num_hidden_layers)),
            norm=load("model.norm.weight"),
            lm_head=embed if config.tie_word_embeddings else load("lm_head.weight"),
        )


@dataclass(frozen=True)
class _Loader:
    tensors: Mapping[str, StoredTensor]
    config: TargetConfig
    backend: Backend

    def __call__(self, name: str) -> Weight:
        return self.backend.weight(self.tensors[name])

    def optional(self, name: str) -> Weight | None:
        return self(name) if name in self.tensors else None

    def layer(self, index: int) -> Layer:
        prefix = f"model.layers.{index}."
        return Layer(
            input_norm=self(prefix + "input_layernorm.weight"),
            attention=self.attention(prefix + "self_attn."),
            post_attention_norm=self(prefix + "post_attention_layernorm.weight"),
            mlp=self.moe(prefix + "mlp.") if self.config.is_moe(index) else self.mlp(prefix + "mlp."),
        )

    def attention(self, prefix: str) -> Attention:
        low_rank = self.config.q_lora_rank is not None
        return Attention(
            q_a=self(prefix + "q_a_proj.weight") if low_rank else None,
            q_a_bias=self.optional(prefix + "q_a_proj.bias"),
            q_norm=self(prefix + "q_a_layernorm.weight") if low_rank else None,
            q_b=self(prefix + ("q_b_proj.weight" if low_rank else "q_proj.weight")),
            kv_a=self(prefix + "kv_a_proj_with_mqa.weight"),
            kv_a_bias=self.optional(prefix + "kv_a_proj_with_mqa.bias"),
            kv_norm=self(prefix + "kv_a_layernorm.weight"),
            kv_b=self(prefix + "kv_b_proj.weight"),
            o=self(prefix + "o_proj.weight"),
            o_bias=self.optional(prefix + "o_proj.bias"),
        )

    def mlp(self, prefix: str) -> Mlp:
        return Mlp(
            gate=self(prefix + "gate_proj.weight"),
            up=self(prefix + "up_proj.weight"),
            down=self(prefix + "down_proj.weight"),
        )

    def moe(self, prefix: str) -> Moe:
        if self.config.n_routed_experts is None:  # is_moe() would not have said so
            raise ConfigError("n_routed_experts is null but a layer is a mixture of experts.")
        experts = [
            ExpertTensors(
                *(
                    self.tensors[f"{prefix}experts.{expert}.{part}_proj.weight"]
                    for part in ("gate", "up", "down")
                )
            )
            for expert in range(self.config.n_routed_experts)
        ]
        shared = self.mlp(prefix + "shared_experts.") if self.config.n_shared_experts else None
        return Moe(
            router=self(prefix + "gate.weight"),
            router_bias=self.optional(prefix + "gate.e_score_correction_bias"),
            experts=self.backend.experts(experts),
            shared=shared,
        )

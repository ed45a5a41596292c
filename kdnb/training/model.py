"""The target in PyTorch: DeepSeek-V3's forward, for training and for writing text.

Modules carry Hugging Face's names, so a state dict is a checkpoint but for the experts, which are stacked.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kdnb.config import TargetConfig
from kdnb.training.quantize import fake_quantize


class Rope(NamedTuple):
    """Cosines and sines of some positions: float32 [..., rows, dim / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def at(cls, inv_freq: Tensor, positions: Tensor, scaling: float = 1.0) -> "Rope":
        """Of positions [..., rows]."""
        angles = positions.float()[..., None] * inv_freq
        return cls(angles.cos() * scaling, angles.sin() * scaling)

    def rotate(self, first: Tensor, second: Tensor) -> Tensor:
        """Rotate pairs given as two halves, [..., rows, dim / 2] each; the halves come out side by side.

        In float32 whatever their dtype, which is the result's.
        """
        dtype, first, second = first.dtype, first.float(), second.float()
        cos, sin = self
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(dtype)


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to [..., size]."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection without bias."""
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Multi-head latent attention with a low-rank query."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        if config.q_lora_rank is None:
            raise ValueError("q_lora_rank is null; the recipe trains low-rank queries.")
        self.config = config
        hidden, heads, lora_eps = config.hidden_size, config.num_attention_heads, config.lora_norm_eps
        self.q_a_proj = linear(hidden, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, lora_eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(hidden, config.cache_width)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, lora_eps)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, hidden)

    def _project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Nope and roped queries [batch, heads, rows, dim]; latents and roped keys [batch, rows, dim]."""
        c = self.config
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (c.num_attention_heads, c.qk_head_dim)).transpose(1, 2)
        q_nope, q_rope = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        latent, key = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        q_rope = rope.rotate(q_rope[..., 0::2], q_rope[..., 1::2])
        key = rope.rotate(key[..., 0::2], key[..., 1::2])
        return q_nope, q_rope, self.kv_a_layernorm(latent).to(key.dtype), key

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """Causal attention over [batch, rows, hidden_size], with keys and values written out."""
        c = self.config
        q_nope, q_rope, latent, key = self._project(x, rope)
        kv = self.kv_b_proj(latent).unflatten(-1, (c.num_attention_heads, -1)).transpose(1, 2)
        k_nope, value = kv.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        k_rope = key[:, None].expand(-1, c.num_attention_heads, -1, -1)
        value = F.pad(value, (0, c.qk_head_dim - c.v_head_dim))  # flash attention wants one head size
        out = F.scaled_dot_product_attention(
            torch.cat([q_nope, q_rope], -1),
            torch.cat([k_nope, k_rope], -1),
            value,
            is_causal=True,
            scale=c.softmax_scale,
        )
        return self.o_proj(out[..., : c.v_head_dim].transpose(1, 2).flatten(2))

    def decode(self, x: Tensor, rope: Rope, cache: Tensor, start: int) -> Tensor:
        """Attend from rows [batch, rows, hidden_size] to a cache, in absorbed form.

        Args:
            x: The rows that stand at `start` and after.
            rope: Their angles.
            cache: [batch, capacity, cache_width]; the rows are written into it.
            start: Rows of the cache already filled.
        """
        c = self.config
        q_nope, q_rope, latent, key = self._project(x, rope)
        stop = start + x.shape[1]
        cache[:, start:stop] = torch.cat([latent, key], -1)
        seen = cache[:, :stop]
        w = self.kv_b_proj.weight.to(seen.dtype).unflatten(0, (c.num_attention_heads, -1))
        w_uk, w_uv = w.split([c.qk_nope_head_dim, c.v_head_dim], 1)
        absorbed = torch.einsum("bhrn,hnl->bhrl", q_nope, w_uk)
        query = torch.cat([absorbed, q_rope], -1)  # [batch, heads, rows, cache_width]
        scores = (query.flatten(1, 2) @ seen.mT).unflatten(1, query.shape[1:3]).float() * c.softmax_scale
        if stop - start > 1:
            hidden = torch.ones(stop - start, stop, dtype=torch.bool, device=x.device).triu(start + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1).to(seen.dtype)
        context = weights.flatten(1, 2) @ seen[..., : c.kv_lora_rank]
        values = torch.einsum("bhrl,hvl->bhrv", context.unflatten(1, query.shape[1:3]), w_uv)
        return self.o_proj(values.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, intermediate_size)
        self.up_proj = linear(hidden_size, intermediate_size)
        self.down_proj = linear(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] to [..., hidden_size]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    """Sigmoid router whose correction bias moves the choice, not the weights (noaux_tc)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        experts = config.n_routed_experts or 0
        if config.scoring_func != "sigmoid" or config.topk_method != "noaux_tc" or config.n_group != 1:
            raise ValueError("the recipe trains sigmoid noaux_tc routers in one group.")
        self.config = config
        self.weight = nn.Parameter(torch.empty(experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Weights of all experts, zero for those not chosen: float32 [..., n_routed_experts]."""
        c = self.config
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.weight).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(c.num_experts_per_tok).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        if self.training:
            self.load += mask.detach().flatten(0, -2).sum(0)
        weights = scores * mask
        if c.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * c.routed_scaling_factor

    def balance(self, rate: float) -> Tensor:
        """Move the bias of each expert against its load since the last call, without an auxiliary loss.

        Returns:
            The largest load over the mean load, on the device: asking for it would wait for the step.
        Source: DeepSeek-V3 (arXiv:2412.19437) section 2.1.2.
        """
        mean = self.load.mean()
        worst: Tensor = self.load.max() / mean.clamp(min=1)
        self.e_score_correction_bias += rate * (mean - self.load).sign()  # a buffer: no gradient
        self.load.zero_()
        return worst


class Experts(nn.Module):
    """The routed experts of a layer, stacked; INT4 values with `quantized`.

    Every expert sees every token, and a weight of 0 drops those that were not chosen: two large products
    instead of many small ones, which is the faster way for a few small experts.
    """

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        experts, hidden = config.n_routed_experts or 0, config.hidden_size
        inner = config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))
        self.quantized = False

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the experts' outputs.

        Args:
            x: [..., hidden_size].
            weights: [..., n_routed_experts].
        """
        gate_up, down = self.gate_up_proj, self.down_proj
        if self.quantized:
            gate_up, down = fake_quantize(gate_up), fake_quantize(down)
        both = F.linear(x, gate_up.flatten(0, 1)).unflatten(-1, (len(gate_up), -1))
        gate, up = both.chunk(2, -1)  # [..., experts, inner]
        inner = F.silu(gate) * up * weights[..., None].to(both.dtype)
        return F.linear(inner.flatten(-2), down.transpose(0, 1).flatten(1))


class Moe(nn.Module):
    """Router, routed experts, and the shared expert that sees every token."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.gate = Router(config)
        self.experts = Experts(config)
        shared = config.moe_intermediate_size * config.n_shared_experts
        self.shared_experts = Mlp(config.hidden_size, shared)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden_size] to [..., hidden_size]."""
        return self.experts(x, self.gate(x)) + self.shared_experts(x)


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: TargetConfig, index: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        moe = config.is_moe(index)
        self.mlp = Moe(config) if moe else Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, h: Tensor, rope: Rope, cache: Tensor | None = None, start: int = 0) -> Tensor:
        """The residual stream [batch, rows, hidden_size], after this layer; with a cache, decodes."""
        x = self.input_layernorm(h)
        attend = self.self_attn
        h = h + (attend(x, rope) if cache is None else attend.decode(x, rope, cache, start))
        return h + self.mlp(self.post_attention_layernorm(h))


class TargetModel(nn.Module):
    """The target; its embedding table is also its output projection."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        if not config.tie_word_embeddings:
            raise ValueError("tie_word_embeddings is false; the recipe ties them.")
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        inv_freq = torch.from_numpy(config.rope.inv_freq(config.qk_rope_head_dim).copy())
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights; what is added to the residual stream starts small, by the number of layers."""
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                adds = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
                std = 0.5 * weight.shape[-1] ** -0.5 / (2 * len(self.layers)) ** (0.5 * adds)
                std = 0.02 if name == "embed_tokens.weight" else std
                nn.init.normal_(weight, std=std, generator=generator)

    def forward(self, token_ids: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Run rows of text from their beginning.

        Args:
            token_ids: int64 [batch, rows].
            taps: Layers whose output, before any norm, is wanted.

        Returns:
            The normed last state [batch, rows, hidden_size], and the outputs of the tapped layers.
        """
        rope = self.rope(torch.arange(token_ids.shape[1], device=token_ids.device))
        h = self.embed_tokens(token_ids)
        outputs = []
        for layer in self.layers:
            h = layer(h, rope)
            outputs.append(h)
        return self.norm(h), [outputs[tap] for tap in taps]

    def decode(self, token_ids: Tensor, caches: Sequence[Tensor], start: int) -> Tensor:
        """Logits of the last row [batch, vocab_size]; arguments as `Attention.decode`, a cache per layer."""
        rows = token_ids.shape[1]
        rope = self.rope(torch.arange(start, start + rows, device=token_ids.device))
        h = self.embed_tokens(token_ids)
        for layer, cache in zip(self.layers, caches, strict=True):
            h = layer(h, rope, cache, start)
        return self.logits(self.norm(h[:, -1]))

    def rope(self, positions: Tensor) -> Rope:
        """Angles of positions [rows]."""
        return Rope.at(self.inv_freq, positions, self.config.rope.attention_scaling)

    def logits(self, states: Tensor) -> Tensor:
        """Normed states [..., hidden_size] to logits [..., vocab_size]."""
        return F.linear(states, self.embed_tokens.weight)

    def routers(self) -> list[Router]:
        """The routers, by layer."""
        return [module for module in self.modules() if isinstance(module, Router)]

    def set_quantized(self, on: bool) -> None:
        """Let the experts compute with INT4 values, or with their own."""
        for module in self.modules():
            if isinstance(module, Experts):
                module.quantized = on

"""The DFlash drafter in PyTorch, and the loss it learns by.

Modules carry the names of z-lab's checkpoints, so a state dict is a checkpoint.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kdnb.drafter_config import DFlashConfig
from kdnb.training.model import Mlp, RMSNorm, Rope, TargetModel, linear


class Blocks(NamedTuple):
    """Draft blocks of some texts: each stands behind a context of its text.

    token_ids and positions are int64 [batch, blocks * block_size]; visible is bool [batch, 1,
    blocks * block_size, context_rows + blocks * block_size]: what each row of a block may see.
    """

    token_ids: Tensor
    positions: Tensor
    visible: Tensor


class DraftAttention(nn.Module):
    """Grouped-query attention with per-head norms, from blocks to context and own block."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = linear(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = linear(config.num_attention_heads * config.head_dim, config.hidden_size)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, ropes: tuple[Rope, Rope], visible: Tensor) -> Tensor:
        """Attend.

        Args:
            x: The blocks' rows [batch, rows, hidden_size].
            context: Projected features of the committed rows [batch, context_rows, hidden_size].
            ropes: Angles of the rows of x, and of context then x.
            visible: bool [batch, 1, rows, context_rows + rows].

        Returns:
            [batch, rows, hidden_size].
        """
        keys_from = torch.cat([context, x], 1)
        query = self._heads(self.q_proj(x), self.q_norm, ropes[0])
        keys = self._heads(self.k_proj(keys_from), self.k_norm, ropes[1])
        values = self.v_proj(keys_from).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        groups = query.shape[1] // keys.shape[1]
        keys, values = (t.repeat_interleave(groups, 1) for t in (keys, values))
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=visible)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor, norm: RMSNorm, rope: Rope) -> Tensor:
        """Norm and rotate every head: [batch, rows, heads * head_dim] to [batch, heads, rows, head_dim]."""
        first, second = norm(x.unflatten(-1, (-1, self.head_dim))).transpose(1, 2).chunk(2, -1)
        return rope.rotate(first, second).to(x.dtype)


class DraftLayer(nn.Module):
    """One layer of the drafter."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = DraftAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)

    def forward(self, h: Tensor, context: Tensor, ropes: tuple[Rope, Rope], visible: Tensor) -> Tensor:
        """The residual stream after this layer; arguments as DraftAttention."""
        h = h + self.self_attn(self.input_layernorm(h), context, ropes, visible)
        return h + self.mlp(self.post_attention_layernorm(h))


class DrafterModel(nn.Module):
    """Drafts blocks from the target's features, with the target's embedding and output projection."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = linear(config.hidden_size * len(config.target_layer_ids), config.hidden_size)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        inv_freq = torch.from_numpy(config.rope.inv_freq(config.head_dim).copy())
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights; what is added to the residual stream starts small."""
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.5 * weight.shape[-1] ** -0.5 / (2 * len(self.layers)) ** (0.5 * adds)
                nn.init.normal_(weight, std=std, generator=generator)

    def forward(self, embedded: Tensor, features: Sequence[Tensor], blocks: Blocks) -> Tensor:
        """Normed states of the blocks' rows.

        Args:
            embedded: The target's embedding of blocks.token_ids, [batch, rows, hidden_size].
            features: Per tapped layer the target's output [batch, context_rows, hidden_size].
            blocks: Where the rows stand and what they see.

        Returns:
            [batch, rows, hidden_size]; the target's output projection makes logits of them.
        """
        context = self.hidden_norm(self.fc(torch.cat(list(features), -1)))
        before = torch.arange(context.shape[1], device=context.device).expand(len(context), -1)
        every = torch.cat([before, blocks.positions], 1)
        ropes = (self.rope(blocks.positions), self.rope(every))
        h = embedded
        for layer in self.layers:
            h = layer(h, context, ropes, blocks.visible)
        return self.norm(h)

    def rope(self, positions: Tensor) -> Rope:
        """Angles of positions [batch, rows], for every head."""
        rope = Rope.at(self.inv_freq, positions, self.config.rope.attention_scaling)
        return Rope(rope.cos[:, None], rope.sin[:, None])


def make_blocks(token_ids: Tensor, anchors: Tensor, config: DFlashConfig) -> tuple[Blocks, Tensor]:
    """Cut blocks out of texts.

    A block's first row is the token at its anchor, the root; the others are masks. Its rows see the
    features of the tokens before the anchor and the block itself, so all blocks of a text run at once.

    Args:
        token_ids: int64 [batch, context_rows].
        anchors: int64 [batch, blocks], with block_size tokens from each anchor on.
        config: The drafter's.

    Returns:
        Blocks, and the tokens they should find: int64 [batch, blocks, block_size - 1].
    """
    batch, rows = token_ids.shape
    size = config.block_size
    positions = anchors[:, :, None] + torch.arange(size, device=anchors.device)
    found = token_ids.gather(1, positions.flatten(1)).view_as(positions)
    ids = torch.full_like(found, config.mask_token_id)
    ids[:, :, 0] = found[:, :, 0]
    before = torch.arange(rows, device=anchors.device) < anchors[:, :, None]  # [batch, blocks, rows]
    before = before.repeat_interleave(size, 1)
    owner = torch.arange(anchors.shape[1], device=anchors.device).repeat_interleave(size)
    own = (owner[:, None] == owner).expand(batch, -1, -1)
    visible = torch.cat([before, own], -1)[:, None]
    return Blocks(ids.flatten(1), positions.flatten(1), visible), found[:, :, 1:]


def draft_logits(
    drafter: DrafterModel, target: TargetModel, token_ids: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """What the drafter says at every depth of every block.

    Args:
        drafter: The drafter.
        target: Its target, frozen.
        token_ids: int64 [batch, context_rows]; texts.
        anchors: int64 [batch, blocks]; see make_blocks.

    Returns:
        Logits [batch, blocks, block_size - 1, vocab_size], and the right tokens without the last axis.
    """
    blocks, found = make_blocks(token_ids, anchors, drafter.config)
    with torch.no_grad():
        features = target(token_ids, drafter.config.target_layer_ids)[1]
        embedded = target.embed_tokens(blocks.token_ids)
    states = drafter(embedded, features, blocks)
    states = states.unflatten(1, (anchors.shape[1], drafter.config.block_size))[:, :, 1:]
    return target.logits(states), found


def draft_loss(logits: Tensor, found: Tensor, decay: float) -> Tensor:
    """Cross entropy, a depth d weighing exp(-(d - 1) / decay): early tokens decide what is accepted.

    Source: DFlash (z-lab), whose decay is 7 for blocks of 16 and 4 for blocks of 8.
    """
    losses = F.cross_entropy(logits.flatten(0, 2).float(), found.flatten(), reduction="none")
    depths = torch.arange(found.shape[-1], device=found.device)
    weights = torch.exp(-depths / decay)
    return (losses.view_as(found) * weights).mean((0, 1)).sum() / weights.sum()

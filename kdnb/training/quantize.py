"""INT4 in groups of 32 columns, as compressed-tensors' pack-quantized format stores it."""

import torch

from kdnb.checkpoint.quantized import INT4_GROUP, INT4_PER_WORD

LEAST_SCALE = 1e-8  # of a group of zeros


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a weight to 4 bits.

    Args:
        weight: float32 [..., rows, columns]; 32 divides columns.

    Returns:
        q, float32 [..., rows, columns], whole numbers in [-8, 7]; and the scales, float32 of bfloat16
        precision [..., rows, columns / 32]. The weight is about q * scale.
    Source: compressed-tensors' symmetric min-max scale: the largest magnitude lies at 7.5.
    """
    groups = weight.unflatten(-1, (-1, INT4_GROUP))
    scale = (groups.abs().amax(-1) / 7.5).clamp(min=LEAST_SCALE).bfloat16().float()
    q = (groups / scale[..., None]).round().clamp(-8, 7)
    return q.flatten(-2), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The weight that q and scale of `quantize` stand for: float32 [..., rows, columns]."""
    return (q.unflatten(-1, (-1, INT4_GROUP)) * scale[..., None]).flatten(-2)


def fake_quantize(weight: torch.Tensor) -> torch.Tensor:
    """The values that INT4 would hold; gradients pass straight through the rounding."""
    held = dequantize(*quantize(weight.detach()))
    return weight + (held - weight).detach()


def pack(q: torch.Tensor) -> torch.Tensor:
    """Pack eight columns into a word, the first in the lowest nibble, as q + 8.

    Args:
        q: Whole numbers in [-8, 7], [rows, columns]; 8 divides columns.

    Returns:
        int32 [rows, columns / 8].
    """
    nibbles = (q.to(torch.int64) + 8).unflatten(-1, (-1, INT4_PER_WORD))
    words = (nibbles << (4 * torch.arange(INT4_PER_WORD, device=q.device))).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)

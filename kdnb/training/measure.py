"""Measurements by PyTorch: held-out bits per byte, and the drafter's agreement with its target."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from kdnb.training.drafter import DrafterModel, draft_logits
from kdnb.training.model import TargetModel
from kdnb.training.sampling import continue_rows

ROWS = 16  # windows at once
MAX_WINDOWS = 512


def bits_per_byte(model: TargetModel, tokens: Tensor, token_bytes: Tensor, length: int) -> float:
    """Bits the target needs for each byte of a text, in windows that know nothing of each other.

    Args:
        model: The target.
        tokens: Integers [tokens]; the first token of a window is given, not predicted.
        token_bytes: int64 [vocab_size].
        length: Tokens of a window.

    Returns:
        Bits per byte over evenly spread windows.
    """
    length = min(length, len(tokens))
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    every = max(1, len(windows) // MAX_WINDOWS)
    nats, count = torch.zeros((), device=tokens.device, dtype=torch.float64), 0
    with torch.inference_mode():
        for part in windows[::every].long().split(ROWS):
            logits = model.logits(model(part[:, :-1])[0]).float()
            nats += F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").double()
            count += int(token_bytes[part[:, 1:]].sum())
    return round(float(nats) / math.log(2) / count, 4)


def agreement(drafter: DrafterModel, target: TargetModel, prompts: Tensor, length: int) -> list[float]:
    """How often the drafter's best token is the target's, by depth, on the target's greedy text.

    Args:
        drafter: The drafter.
        target: The target.
        prompts: int64 [batch, prompt_tokens].
        length: Tokens of a text in the end.

    Returns:
        Shares, for depths 1 to block_size - 1; whatever happened at the depths before.
    """
    generator = torch.Generator(prompts.device).manual_seed(0)
    temperature = torch.zeros(len(prompts), device=prompts.device)
    rows = continue_rows(target, prompts, length, temperature, generator)
    first, size = prompts.shape[1] - 1, drafter.config.block_size
    anchors = torch.arange(first, length - size + 1, 4, device=rows.device).expand(len(rows), -1)
    right = torch.zeros(size - 1, device=rows.device, dtype=torch.float64)
    count = 0
    with torch.inference_mode():
        for ids, places in zip(rows.split(ROWS), anchors.split(ROWS), strict=True):
            logits, found = draft_logits(drafter, target, ids, places)
            right += (logits.argmax(-1) == found).double().sum((0, 1))
            count += places.numel()
    return [round(share, 4) for share in (right / count).tolist()]

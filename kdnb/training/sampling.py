"""Text that the target writes: what the drafter will have to foresee."""

import torch
from torch import Tensor

from kdnb.training.model import TargetModel


def continue_rows(
    model: TargetModel, prompts: Tensor, length: int, temperature: Tensor, generator: torch.Generator
) -> Tensor:
    """Continue many prompts at once.

    Args:
        model: The target.
        prompts: int64 [batch, prompt_tokens].
        length: Tokens of a row in the end, prompt included.
        temperature: float [batch]; 0 is greedy.
        generator: Of the noise, on the model's device.

    Returns:
        int64 [batch, length].
    """
    device, batch = prompts.device, len(prompts)
    caches = [torch.zeros(batch, length, model.config.cache_width, device=device) for _ in model.layers]
    rows = torch.empty(batch, length, dtype=torch.int64, device=device)
    start = prompts.shape[1]
    rows[:, :start] = prompts
    fresh = prompts
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # bfloat16 would tie too many of the best two tokens
    try:
        with torch.inference_mode(), torch.autocast(device.type, enabled=False):
            for at in range(start, length):
                logits = model.decode(fresh, caches, at - fresh.shape[1])
                noise = torch.empty_like(logits).exponential_(generator=generator).log_()
                fresh = (logits - noise * temperature[:, None]).argmax(-1, keepdim=True)
                rows[:, at] = fresh[:, 0]
    finally:
        torch.set_float32_matmul_precision(precision)
    return rows


def distinct_share(rows: Tensor, n: int = 4) -> Tensor:
    """Share of distinct n-grams in each row of int64 [batch, length]: float [batch]; low where it loops."""
    grams = rows.unfold(1, n, 1)
    key = torch.zeros(grams.shape[:2], dtype=torch.int64, device=rows.device)
    for place in range(n):
        key = key * 8191 + grams[..., place]  # ids below 8191: no two n-grams share a key
    ordered = key.sort(1).values
    return 1 - (ordered[:, 1:] == ordered[:, :-1]).sum(1) / key.shape[1]

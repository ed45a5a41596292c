"""Choosing the experts of every token."""

from typing import Literal, NamedTuple

import numpy as np

from kdnb.arrays import Floats, HostArray


class RouterSpec(NamedTuple):
    """How a model routes; the fields are the HF config's."""

    scoring_func: Literal["sigmoid", "softmax"]
    topk_method: Literal["noaux_tc", "greedy", "group_limited_greedy"]
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float


class Routing(NamedTuple):
    """The chosen experts: topk_index int32 and topk_weight, each [rows, k]."""

    topk_index: HostArray
    topk_weight: HostArray


def route(logits: Floats, bias: Floats | None, spec: RouterSpec) -> Routing:
    """Score the experts, keep the best groups, take the best experts, weigh them.

    Args:
        logits: [rows, n_routed_experts], the product with mlp.gate.
        bias: [n_routed_experts] e_score_correction_bias or None. It moves the choice, not the weights.
        spec: The model's routing rules.

    Returns:
        Routing; experts in descending order of the score they were chosen by, ties to the lower id.
    Source: DeepSeek-V3 (arXiv:2412.19437) section 2.1.2; DeepSeek-V2 (arXiv:2405.04434) section 2.2.
    """
    scores = _score(logits, spec)
    choice = scores if bias is None else scores + bias
    if spec.topk_method != "greedy" and spec.n_group > 1:
        choice = _keep_groups(choice, spec)
    topk_index = np.argsort(-choice, axis=1, kind="stable")[:, : spec.num_experts_per_tok]
    topk_weight = scores[np.arange(len(scores))[:, None], topk_index]
    if spec.norm_topk_prob:
        topk_weight = topk_weight / (np.add.reduce(topk_weight, axis=1, keepdims=True) + 1e-20)
    topk_weight = topk_weight * topk_weight.dtype.type(spec.routed_scaling_factor)
    return Routing(topk_index.astype(np.int32), topk_weight)


def _score(logits: Floats, spec: RouterSpec) -> Floats:
    if spec.scoring_func == "sigmoid":
        with np.errstate(over="ignore"):  # exp(-x) may reach inf, then the score is 0
            sigmoid: Floats = 1 / (1 + np.exp(-logits))
        return sigmoid
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return softmax


def _keep_groups(choice: Floats, spec: RouterSpec) -> Floats:
    """Hide the experts outside the best `topk_group` groups."""
    grouped = choice.reshape(choice.shape[0], spec.n_group, -1)
    if spec.topk_method == "noaux_tc":  # V3: the sum of a group's two best
        group_score = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
        outside = -np.inf
    else:  # V2: a group's best; experts outside score 0
        group_score = grouped.max(axis=2)
        outside = 0.0
    kept = np.argsort(-group_score, axis=1, kind="stable")[:, : spec.topk_group]
    hidden = np.ones(group_score.shape, dtype=np.bool_)
    np.put_along_axis(hidden, kept, False, axis=1)
    return np.where(hidden[:, :, None], choice.dtype.type(outside), grouped).reshape(choice.shape)

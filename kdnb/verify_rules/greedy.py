"""Keeping what the target would have chosen at temperature 0."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Floats
from kdnb.noise import Noise
from kdnb.reference.tree_accept import accept
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_logits


@dataclass(frozen=True)
class Greedy:
    """Follow the target's argmax; equal logits go to the lower id. Lossless."""

    lossless: ClassVar[bool] = True

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path; see VerifyRule."""
        check_logits(tree, target_logits)
        acceptance = accept(tree, target_logits.argmax(axis=1))
        return replace(acceptance, min_gap=min_gap(target_logits[acceptance.accepted]))


def min_gap(keys: Floats) -> float | None:
    """The smallest margin by which a row's largest key won; None where there is one token only."""
    if keys.shape[1] < 2:
        return None
    best_two = np.partition(keys, -2, axis=1)[:, -2:].astype(np.float64)
    return float((best_two[:, 1] - best_two[:, 0]).min())

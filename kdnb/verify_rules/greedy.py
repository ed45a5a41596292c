"""Keeping what the target would have chosen at temperature 0."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Floats
from kdnb.noise import Noise
from kdnb.reference.tree_accept import accept
from kdnb.tree import DraftTree
from kdnb.verify_rules.base import check_finite


@dataclass(frozen=True)
class Greedy:
    """Follow the target's argmax; equal logits go to the lower id. Lossless."""

    lossless: ClassVar[bool] = True

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path; see VerifyRule."""
        check_finite(target_logits)
        return accept_argmax(tree, target_logits)


def accept_argmax(tree: DraftTree, keys: Floats) -> Acceptance:
    """Follow the largest key after each node, and record the smallest margin on the kept path."""
    acceptance = accept(tree, keys.argmax(axis=1))
    gap = None
    if keys.shape[1] > 1:
        best_two = np.partition(keys[acceptance.accepted], -2, axis=1)[:, -2:]
        gap = float((best_two[:, 1] - best_two[:, 0]).min())
    return replace(acceptance, min_gap=gap)

"""What a verify rule is, and what the loop checks of the acceptances it returns."""

from typing import Protocol, runtime_checkable

import numpy as np

from kdnb.acceptance import Acceptance
from kdnb.arrays import Floats
from kdnb.errors import ConfigError, ShapeError, VerifyRuleError
from kdnb.noise import Noise
from kdnb.tree import DraftTree


@runtime_checkable
class VerifyRule(Protocol):
    """Decides which nodes are kept. A lossless rule emits what the target alone would."""

    @property
    def lossless(self) -> bool:
        """Whether the emitted text follows the target's own distribution."""

    def __call__(self, tree: DraftTree, target_logits: Floats, noise: Noise) -> Acceptance:
        """Accept a path.

        Args:
            tree: The verified tree.
            target_logits: float [num_nodes, vocab_size]; after each node.
            noise: The round's noise.

        Returns:
            Acceptance.
        """


def check_acceptance(tree: DraftTree, acceptance: object, vocab_size: int) -> None:
    """Refuse an acceptance that is not a path of the tree from the root down.

    Raises:
        VerifyRuleError: the message says what is wrong, with numbers.
    """
    if not isinstance(acceptance, Acceptance):
        raise VerifyRuleError(f"the verify rule returned {type(acceptance).__name__}; return an Acceptance.")
    accepted = np.asarray(acceptance.accepted)
    if accepted.size and not np.issubdtype(accepted.dtype, np.integer):
        raise VerifyRuleError(f"accepted has dtype {accepted.dtype}; it must hold node indices.")
    if accepted.ndim != 1 or not len(accepted) or accepted[0] != 0:
        raise VerifyRuleError(f"accepted is {accepted.tolist()}; it must start at the root, node 0.")
    if accepted.min() < 0 or accepted.max() >= tree.num_nodes:
        raise VerifyRuleError(
            f"accepted is {accepted.tolist()} but the tree has nodes 0 to {tree.num_nodes - 1}."
        )
    for above, below in zip(accepted[:-1].tolist(), accepted[1:].tolist(), strict=True):
        if int(tree.parents[below]) != above:
            raise VerifyRuleError(
                f"accepted goes from node {above} to node {below}, whose parent is "
                f"{int(tree.parents[below])}; it must be a path from the root down."
            )
    bonus_id = acceptance.bonus_id
    if isinstance(bonus_id, bool) or not isinstance(bonus_id, int | np.integer):
        raise VerifyRuleError(f"bonus_id is {bonus_id!r}; it must be a token id.")
    if not 0 <= bonus_id < vocab_size:
        raise VerifyRuleError(f"bonus_id is {bonus_id} but ids of this model go from 0 to {vocab_size - 1}.")
    if acceptance.next_ids is not None and np.shape(acceptance.next_ids) != (tree.num_nodes,):
        raise VerifyRuleError(
            f"next_ids has shape {list(np.shape(acceptance.next_ids))} but the tree has {tree.num_nodes} "
            "nodes (root included); return one id per node, or None."
        )


def check_logits(tree: DraftTree, target_logits: Floats) -> None:
    """Refuse target logits that nothing can be chosen from; -inf is a token that cannot come.

    Raises:
        ShapeError: if there is not one row per node.
        VerifyRuleError: if a row holds NaN, +inf, or nothing but -inf; the message names the node.
    """
    shape = np.shape(target_logits)
    if len(shape) != 2 or shape[0] != tree.num_nodes or not shape[1]:
        raise ShapeError(
            f"target_logits has shape {list(shape)} but the tree has {tree.num_nodes} nodes (root "
            "included); pass [num_nodes, vocab_size]."
        )
    tops = target_logits.max(axis=1)  # max hands a NaN on
    broken = np.flatnonzero(~np.isfinite(tops))
    if broken.size:
        node = int(broken[0])
        what = {np.inf: "plus infinity", -np.inf: "minus infinity only"}.get(float(tops[node]), "NaN")
        raise VerifyRuleError(f"target logits of node {node} hold {what}; the model is broken.")


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Refuse sampling parameters out of range (ConfigError)."""
    check_temperature(temperature)
    if temperature == 0:
        raise ConfigError(f"temperature is {temperature}; use a number above 0 (0 is the rule Greedy).")
    check_cuts(top_k, top_p)


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that is not a finite number from 0 up (ConfigError)."""
    number = isinstance(temperature, int | float | np.floating) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < float("inf"):
        raise ConfigError(f"temperature is {temperature!r}; use 0 (greedy) or a number above.")


def check_cuts(top_k: int, top_p: float) -> None:
    """Refuse a top_k or top_p out of range (ConfigError)."""
    if isinstance(top_k, bool) or not isinstance(top_k, int | np.integer) or top_k < 0:
        raise ConfigError(f"top_k is {top_k!r}; use 0 (all tokens) or a positive integer.")
    if isinstance(top_p, bool) or not isinstance(top_p, int | float | np.floating) or not 0 < top_p <= 1:
        raise ConfigError(f"top_p is {top_p!r}; use a probability in (0, 1].")

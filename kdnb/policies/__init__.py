"""Tree policies: how a draft becomes a tree."""

from collections.abc import Sequence

from kdnb.arrays import HostArray
from kdnb.draft import Draft
from kdnb.errors import ConfigError
from kdnb.policies.base import TreePolicy, check_node_budget, check_tree
from kdnb.policies.chain import Chain
from kdnb.policies.ddtree import DDTree
from kdnb.policies.eagle_rerank import EagleRerank
from kdnb.policies.sampled import Sampled
from kdnb.policies.static import Static
from kdnb.policies.threshold import Threshold
from kdnb.tree import UNKNOWN_ROOT, DraftTree

__all__ = [
    "BUILT_IN",
    "Chain",
    "DDTree",
    "EagleRerank",
    "Sampled",
    "Static",
    "Threshold",
    "TreePolicy",
    "build_tree",
    "check_node_budget",
    "check_tree",
    "resolve",
]

BUILT_IN: dict[str, TreePolicy] = {
    "ddtree": DDTree(),
    "ddtree_spine": DDTree(spine=True),
    "chain": Chain(),
    "eagle_rerank": EagleRerank(),
    "threshold": Threshold(),
    "static": Static(),
    "sampled": Sampled(),
}


def resolve(policy: str | TreePolicy) -> TreePolicy:
    """Return a policy object: a built-in by name, or the object itself.

    Raises:
        ConfigError: if there is no such name, or the object cannot be called.
    """
    if isinstance(policy, str):
        if policy not in BUILT_IN:
            raise ConfigError(f'policy "{policy}" is unknown; use one of {", ".join(BUILT_IN)}.')
        return BUILT_IN[policy]
    if isinstance(policy, type):
        raise ConfigError(f"policy is the class {policy.__name__}; pass an object: {policy.__name__}().")
    if not callable(policy):
        raise ConfigError(f"policy is {policy!r}; pass a name or a TreePolicy.")
    return policy


def build_tree(
    log_probs: Sequence[Sequence[float]] | HostArray,
    node_budget: int,
    policy: str | TreePolicy = "ddtree",
) -> DraftTree:
    """Build a draft tree from log-probs.

    Args:
        log_probs: float32 [max_depth, vocab_size]; the drafter's marginals.
        node_budget: Drafted nodes, the root not counted.
        policy: A name or a TreePolicy.

    Returns:
        DraftTree; its root is -1 (see DraftTree.with_root).

    Raises:
        ConfigError: if the budget or the policy cannot be used.
        DrafterError: if log_probs have another shape, or hold NaN.
    """
    check_node_budget(node_budget)
    return resolve(policy)(Draft.from_log_probs(UNKNOWN_ROOT, log_probs), node_budget)

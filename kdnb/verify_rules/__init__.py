"""Verify rules: which drafted nodes are kept."""

from kdnb.errors import ConfigError
from kdnb.reference.tree_accept import accept
from kdnb.verify_rules.base import VerifyRule, check_acceptance
from kdnb.verify_rules.greedy import Greedy

__all__ = ["Greedy", "VerifyRule", "accept", "check_acceptance", "resolve"]


def resolve(
    temperature: float, top_k: int, top_p: float, verify_rule: VerifyRule | None = None
) -> VerifyRule:
    """Return the rule that a decoding asks for."""
    if verify_rule is not None:
        return verify_rule
    if temperature == 0:
        return Greedy()
    raise ConfigError("sampling not yet")

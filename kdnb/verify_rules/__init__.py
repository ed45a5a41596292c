"""Verify rules: which drafted nodes are kept."""

from kdnb.errors import ConfigError
from kdnb.reference.tree_accept import accept
from kdnb.verify_rules.base import VerifyRule, check_acceptance, check_cuts, check_temperature
from kdnb.verify_rules.greedy import Greedy
from kdnb.verify_rules.multi_round_rejection import MultiRoundRejection
from kdnb.verify_rules.sample_and_walk import SampleAndWalk
from kdnb.verify_rules.typical_acceptance_lossy import TypicalAcceptanceLossy

__all__ = [
    "Greedy",
    "MultiRoundRejection",
    "SampleAndWalk",
    "TypicalAcceptanceLossy",
    "VerifyRule",
    "accept",
    "check_acceptance",
    "resolve",
]


def resolve(
    temperature: float, top_k: int, top_p: float, verify_rule: VerifyRule | None = None
) -> VerifyRule:
    """Return the rule that a decoding asks for.

    Args:
        temperature: 0 is Greedy, above 0 SampleAndWalk.
        top_k: Of sampling.
        top_p: Of sampling.
        verify_rule: Returned as it is; it brings its own parameters.

    Raises:
        ConfigError: if a value is out of range, or both a rule and sampling parameters are given.
    """
    check_temperature(temperature)
    check_cuts(top_k, top_p)
    if verify_rule is None:
        return Greedy() if temperature == 0 else SampleAndWalk(temperature, top_k, top_p)
    if (temperature, top_k, top_p) != (0.0, 0, 1.0):
        raise ConfigError(
            f"verify_rule {verify_rule!r} brings its own parameters; leave out temperature, top_k and top_p."
        )
    if isinstance(verify_rule, type):
        raise ConfigError(
            f"verify_rule is the class {verify_rule.__name__}; pass an object: {verify_rule.__name__}()."
        )
    if not callable(verify_rule) or not isinstance(getattr(verify_rule, "lossless", None), bool):
        raise ConfigError(
            f"verify_rule is {verify_rule!r}; pass a VerifyRule: callable, with lossless True or False."
        )
    return verify_rule

"""The checks that kdnb's own drafters, policies, rules and backends pass; run them on yours.

    kdnb.testing.check_policy(MyPolicy())

Each raises CheckFailed with the property that broke, and returns None if all is well.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kdnb.testing.base import CheckFailed

if TYPE_CHECKING:
    from kdnb.testing.backends import check_backend
    from kdnb.testing.drafters import check_drafter
    from kdnb.testing.policies import check_policy
    from kdnb.testing.verify_rules import check_verify_rule

__all__ = ["CheckFailed", "check_backend", "check_drafter", "check_policy", "check_verify_rule"]

_HOMES = {
    "check_backend": "kdnb.testing.backends",
    "check_drafter": "kdnb.testing.drafters",
    "check_policy": "kdnb.testing.policies",
    "check_verify_rule": "kdnb.testing.verify_rules",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kdnb.testing' has no attribute {name!r}")

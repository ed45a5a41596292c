"""A laboratory for draft-tree speculative decoding of MLA/MoE language models.

    target = kdnb.load_target("tiny")
    drafter = kdnb.load_drafter("tiny", target)
    run = kdnb.generate(target, "def read(self", drafter, max_new_tokens=64)

Names are looked up when they are first used, so that importing kdnb needs nothing but numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdnb import drafters, errors, policies, testing, verify_rules
    from kdnb.acceptance import Acceptance
    from kdnb.draft import Draft, DraftContext
    from kdnb.drafters import load_drafter
    from kdnb.loop import generate, rounds
    from kdnb.model import Target, load_target
    from kdnb.notebooks import notebooks_dir
    from kdnb.policies import build_tree
    from kdnb.run import Run
    from kdnb.trace import RoundTrace
    from kdnb.tree import DraftTree
    from kdnb.verify_rules import accept

__version__ = "0.1.0"

__all__ = [
    "Acceptance",
    "Draft",
    "DraftContext",
    "DraftTree",
    "RoundTrace",
    "Run",
    "Target",
    "accept",
    "build_tree",
    "drafters",
    "errors",
    "generate",
    "load_drafter",
    "load_target",
    "notebooks_dir",
    "policies",
    "rounds",
    "testing",
    "verify_rules",
]

_HOMES = {
    "Acceptance": "kdnb.acceptance",
    "Draft": "kdnb.draft",
    "DraftContext": "kdnb.draft",
    "DraftTree": "kdnb.tree",
    "RoundTrace": "kdnb.trace",
    "Run": "kdnb.run",
    "Target": "kdnb.model",
    "accept": "kdnb.verify_rules",
    "build_tree": "kdnb.policies",
    "generate": "kdnb.loop",
    "load_drafter": "kdnb.drafters",
    "load_target": "kdnb.model",
    "notebooks_dir": "kdnb.notebooks",
    "rounds": "kdnb.loop",
}
_MODULES = ("drafters", "errors", "policies", "testing", "verify_rules")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"kdnb.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kdnb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""The choices of one decoding."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from kdnb.arrays import check_integer
from kdnb.errors import ConfigError
from kdnb.policies import TreePolicy
from kdnb.verify_rules import VerifyRule

MAX_NODE_BUDGET = 1 << 20  # a tree of so many nodes is a slip


@dataclass(frozen=True)
class Settings:
    """The keyword arguments of `generate` and `rounds`.

    Args:
        max_new_tokens: Tokens to emit at the most; never overshot.
        node_budget: Drafted nodes per tree, the root not counted; 0 is plain decoding.
        policy: How a draft becomes a tree: a name (see kdnb.policies) or a TreePolicy.
        temperature: 0 is greedy; otherwise the target's logits are divided by it and sampled.
        top_k: Sample among this many best tokens; 0 is all.
        top_p: Sample among the fewest tokens whose probabilities reach this sum.
        seed: Keys the noise, together with a token's position and id.
        verify_rule: A VerifyRule instead of the one that temperature, top_k and top_p ask for.
        trace: "light", or "full" for everything an inspector shows.
        stop_ids: End after one of these ids; None takes the checkpoint's, () never stops early.
        prefill_chunk: Prompt rows per forward.
        on_token: Called with each emitted id, in order.
        deterministic: Compute every row alone: the tokens then equal plain deterministic decoding
            whatever the gaps are. A target loaded with deterministic=True always does.

    Raises:
        ConfigError: if a value cannot be used.
    """

    max_new_tokens: int
    node_budget: int = 32
    policy: str | TreePolicy = "ddtree"
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    verify_rule: VerifyRule | None = None
    trace: Literal["light", "full"] = "light"
    stop_ids: Sequence[int] | None = None
    prefill_chunk: int = 512
    on_token: Callable[[int], None] | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_new_tokens", 1, None),
            ("node_budget", 0, MAX_NODE_BUDGET),
            ("seed", 0, None),
            ("prefill_chunk", 1, None),
        ):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), least, most))
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if isinstance(value, np.floating | np.integer):
                object.__setattr__(self, name, float(value))
        if self.temperature == 0 and self.verify_rule is None and (self.top_k or self.top_p != 1):
            raise ConfigError(
                f"top_k is {self.top_k} and top_p is {self.top_p}, but temperature 0 is greedy and uses "
                "neither; set a temperature, or leave them at 0 and 1."
            )
        object.__setattr__(self, "stop_ids", _token_ids("stop_ids", self.stop_ids))
        if not isinstance(self.deterministic, bool):
            raise ConfigError(f"deterministic is {self.deterministic!r}; use True or False.")
        if self.on_token is not None and not callable(self.on_token):
            raise ConfigError(f"on_token is {self.on_token!r}; pass a function of one token id.")
        if self.trace not in ("light", "full"):
            raise ConfigError(f'trace is "{self.trace}"; use "light" or "full".')


def _token_ids(name: str, value: Any) -> tuple[int, ...] | None:
    """Ids as a tuple: an iterator would be empty when it is asked for again."""
    if value is None:
        return None
    try:
        ids: tuple[Any, ...] = tuple(value)
    except TypeError:  # a bare number
        ids = (value, None)
    if isinstance(value, str) or not all(isinstance(token_id, int | np.integer) for token_id in ids):
        raise ConfigError(f"{name} is {value!r}; pass a sequence of token ids, or None.")
    return tuple(int(token_id) for token_id in ids)


def settings_of(caller: str, given: dict[str, Any]) -> Settings:
    """Settings from a caller's keyword arguments.

    Raises:
        ConfigError: if a name is unknown or max_new_tokens is missing; the message is about the caller.
    """
    known = [field.name for field in fields(Settings)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}."
            raise ConfigError(f'{caller}() has no argument "{name}"; {hint}')
    if "max_new_tokens" not in given:
        raise ConfigError(f"{caller}() needs max_new_tokens: how many tokens to emit at the most.")
    return Settings(**given)

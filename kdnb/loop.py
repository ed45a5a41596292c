"""The calls that decode: `generate` and the generator behind it, `rounds`."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from kdnb.arrays import HostArray, as_token_ids
from kdnb.decoding import Decoding
from kdnb.drafters.base import Drafter
from kdnb.errors import ConfigError, TokenError
from kdnb.model import Target
from kdnb.run import Run
from kdnb.settings import Settings, settings_of
from kdnb.trace import RoundTrace


def rounds(
    target: Target,
    prompt: str | Sequence[int] | HostArray,
    drafter: Drafter | None = None,
    **settings: Any,
) -> Iterator[RoundTrace]:
    """Decode one round per step: the generator behind `generate`, with the same arguments.

    Yields:
        RoundTrace of each round. The first root, `tree.token_ids[0]`, is the token that the prompt's
        own logits chose; with max_new_tokens=1 there is no round.

    Raises:
        As `generate`, at the call and not at the first step.
    """
    return iter(start(target, prompt, drafter, settings_of("rounds", settings)))


def generate(
    target: Target,
    prompt: str | Sequence[int] | HostArray,
    drafter: Drafter | None = None,
    *,
    progress: bool = False,
    **settings: Any,
) -> Run:
    """Decode a continuation of the prompt.

    Args:
        target: The target model: every emitted token is its own choice.
        prompt: Text (the target needs a tokenizer) or token ids.
        drafter: Proposes the trees; None is plain decoding, one token a round.
        progress: Show a progress bar, if standard error is a terminal.
        settings: The fields of Settings: max_new_tokens (required), node_budget, policy, temperature,
            top_k, top_p, seed, verify_rule, trace, stop_ids, prefill_chunk, on_token, deterministic.

    Returns:
        Run. An interrupt (Ctrl-C) ends the run early with stop_reason "interrupted"; nothing is lost.

    Raises:
        ConfigError, TokenError: if an argument cannot be used.
        DrafterError: if the drafter does not fit the target.
        PolicyError, VerifyRuleError: if a policy or rule breaks its contract.
    """
    decoding = start(target, prompt, drafter, settings_of("generate", settings))
    began = time.perf_counter()
    stop_reason: str | None = None
    try:
        if progress:
            for _ in _with_progress(iter(decoding), decoding):
                pass
        else:
            decoding.run_all()
    except KeyboardInterrupt:
        stop_reason = "interrupted"
    wall_us = (time.perf_counter() - began) * 1e6
    return decoding.run(stop_reason or decoding.stop_reason or "interrupted", wall_us)


def start(
    target: Target,
    prompt: str | Sequence[int] | HostArray,
    drafter: Drafter | None,
    settings: Settings,
) -> Decoding:
    """Check a prompt against the target and set up its decoding; nothing runs yet.

    Args:
        target: The target model.
        prompt: Text or token ids.
        drafter: Proposes the trees, or None.
        settings: The choices of this decoding.

    Returns:
        Decoding, which iterates over rounds.

    Raises:
        ConfigError, TokenError: if the prompt or a setting cannot be used with this target.
    """
    if drafter is not None and (isinstance(drafter, type) or not isinstance(drafter, Drafter)):
        raise ConfigError(
            f"drafter is {drafter!r}, which has no start, draft and commit; pass an object, such as "
            "kdnb.load_drafter(path, target)."
        )
    if isinstance(prompt, str):
        if target.tokenizer is None:
            raise TokenError(f"{target!r} has no tokenizer, so the prompt must be token ids, not text.")
        prompt = target.tokenizer.encode(prompt)
    prompt_ids = as_token_ids(prompt, target.config.vocab_size, "prompt")
    if settings.stop_ids:
        as_token_ids(settings.stop_ids, target.config.vocab_size, "stop_ids")
    length, room = len(prompt_ids) + settings.max_new_tokens, target.config.max_position_embeddings
    if length > room:
        raise ConfigError(
            f"the prompt has {len(prompt_ids)} tokens and max_new_tokens is "
            f"{settings.max_new_tokens}: together {length}, but the context holds {room} "
            "(max_position_embeddings); shorten one of them."
        )
    return Decoding(target, drafter, prompt_ids, settings)


def _with_progress(steps: Iterator[RoundTrace], decoding: Decoding) -> Iterator[RoundTrace]:
    from tqdm import tqdm

    total = decoding.settings.max_new_tokens
    with tqdm(total=total, unit="token", disable=None) as bar:  # None: only on a terminal
        for step in steps:
            bar.update(len(decoding.token_ids) - bar.n)
            yield step

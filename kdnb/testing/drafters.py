"""Does a drafter keep the Drafter contract?"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from kdnb.arrays import Floats, Int32
from kdnb.cache import LatentCache
from kdnb.draft import Draft, DraftContext
from kdnb.drafters.base import Drafter
from kdnb.errors import ConfigError, KdnbError
from kdnb.loop import generate
from kdnb.model import Target, load_target
from kdnb.noise import Noise
from kdnb.policies import check_tree
from kdnb.run import Run
from kdnb.testing.base import CheckFailed
from kdnb.tree import DraftTree

NODE_BUDGET = 12
NUM_TOKENS = 24
T = TypeVar("T")
TOLERANCE = 1e-3  # of draft log-probs: one and many rows round differently


def check_drafter(
    drafter: Drafter, target: Target | None = None, prompt_ids: list[int] | None = None
) -> None:
    """Run a drafter through everything that the loop relies on.

    Args:
        drafter: The drafter to judge.
        target: A target that it drafts for; None is the shipped golden one.
        prompt_ids: What to continue, 3 tokens or more; None takes a fixed prompt.

    Raises:
        CheckFailed: at the first broken promise; the message says which, and where.
        ConfigError: if the prompt is too short to be committed in chunks.
    """
    if target is None:
        target = load_target("golden")
    vocab_size = target.config.vocab_size
    prompt = np.array(prompt_ids or [token % vocab_size for token in range(40, 57)], dtype=np.int32)
    if len(prompt) < 3:
        raise ConfigError(
            f"prompt_ids has {len(prompt)} tokens; the checks commit it in 3 chunks, so 3 or more."
        )
    _check_attributes(drafter, target)
    plain = generate(target, prompt, max_new_tokens=NUM_TOKENS, stop_ids=())  # before it can do harm
    one = _draft_after(drafter, target, [prompt])
    _check_proposal(one, int(prompt[0]), drafter, target)
    _compare("after a restart", one, _draft_after(drafter, target, [prompt]))
    middle = min(5, len(prompt) - 2)
    chunks = [prompt[:middle], prompt[middle : middle + 1], prompt[middle + 1 :]]
    _compare("after the same prompt committed in chunks", one, _draft_after(drafter, target, chunks))
    _check_asking_twice(drafter, target, prompt)
    _check_text(drafter, target, prompt, plain)


def _check_attributes(drafter: Drafter, target: Target) -> None:
    depth = getattr(drafter, "max_depth", None)
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < 1:
        raise CheckFailed(f"max_depth is {depth!r}; it must be an integer from 1 up.")
    names = getattr(drafter, "tap_names", None)
    if not isinstance(names, tuple | list):
        raise CheckFailed(f"tap_names is {names!r}; it must be a tuple of names.")
    unknown = sorted(set(names) - set(target.tap_names))
    if unknown:
        raise CheckFailed(f"tap_names has {unknown[0]!r}, which the target does not compute.")


def _begin(drafter: Drafter, target: Target, chunks: list[Int32]) -> tuple[DraftContext, LatentCache]:
    """Start a sequence and commit it chunk by chunk; the context of its first round, and the cache."""
    _guard("start", lambda: drafter.start(target))
    cache = target.new_cache()
    for chunk in chunks:
        result = target.forward(chunk, cache, taps=drafter.tap_names, logits="last", host=False)
        cache.commit()
        _guard("commit", lambda chunk=chunk, taps=result.taps: drafter.commit(chunk, taps))  # type: ignore[misc]
    text = np.concatenate(chunks)
    root_id = int(text[0])
    context = DraftContext(
        token_ids=np.append(text, np.int32(root_id)).astype(np.int32),
        prefix_len=cache.prefix_len,
        root_id=root_id,
        node_budget=NODE_BUDGET,
        noise=Noise(0, cache.prefix_len),
    )
    if cache.prefix_len != len(text):
        raise CheckFailed(f"after commit the target's cache holds {cache.prefix_len} rows, not {len(text)}.")
    return context, cache


def _draft_after(drafter: Drafter, target: Target, chunks: list[Int32]) -> Draft | DraftTree:
    context, cache = _begin(drafter, target, chunks)
    before = _cache_rows(cache, target)
    proposal = _guard("draft", lambda: drafter.draft(context))
    after = _cache_rows(cache, target)
    if cache.prefix_len != context.prefix_len:
        raise CheckFailed(
            f"draft changed the target's cache from {context.prefix_len} rows to {cache.prefix_len}; "
            "a drafter needs a cache of its own."
        )
    for layer, (old, new) in enumerate(zip(before, after, strict=True)):
        if (old != new).any():
            raise CheckFailed(
                f"draft changed rows of layer {layer} in the target's cache; "
                "a drafter needs a cache of its own."
            )
    return proposal


def _cache_rows(cache: LatentCache, target: Target) -> list[Floats]:
    layers = range(target.config.num_hidden_layers)
    return [target.backend.cache_rows(cache.rows, layer, cache.prefix_len) for layer in layers]


def _check_proposal(proposal: object, root_id: int, drafter: Drafter, target: Target) -> None:
    if isinstance(proposal, DraftTree):
        try:
            check_tree(proposal, root_id, NODE_BUDGET, target.config.vocab_size)
        except KdnbError as error:
            raise CheckFailed(f"draft returned a tree that the loop refuses: {error}") from None
        if proposal.max_depth > drafter.max_depth:
            raise CheckFailed(f"the tree is {proposal.max_depth} deep but max_depth is {drafter.max_depth}.")
        return
    if not isinstance(proposal, Draft):
        raise CheckFailed(f"draft returned {type(proposal).__name__}; return a Draft or a DraftTree.")
    if proposal.max_depth > drafter.max_depth:
        raise CheckFailed(f"the draft has {proposal.max_depth} depths but max_depth is {drafter.max_depth}.")
    if proposal.root_id != root_id:
        raise CheckFailed(f"the draft's root is token {proposal.root_id}, the context's {root_id}.")
    if proposal.vocab_size != target.config.vocab_size:
        raise CheckFailed(
            f"the draft has {proposal.vocab_size} tokens per depth, the target {target.config.vocab_size}."
        )
    _guard("reading the draft", lambda: proposal.log_probs)  # NaN on a backend shows only now


def _compare(when: str, one: Draft | DraftTree, other: Draft | DraftTree) -> None:
    if isinstance(one, DraftTree) or isinstance(other, DraftTree):
        same = (
            isinstance(one, DraftTree)
            and isinstance(other, DraftTree)
            and one.token_ids.tolist() == other.token_ids.tolist()
            and one.parents.tolist() == other.parents.tolist()
        )
        if not same:
            raise CheckFailed(
                f"the tree is another one {when}; a drafter must not keep what it forgot to reset."
            )
        return
    if one.log_probs.shape != other.log_probs.shape:
        raise CheckFailed(
            f"the draft has shape {list(other.log_probs.shape)} {when}, before {list(one.log_probs.shape)}."
        )
    # far-out tokens may differ in rounding: compare probabilities where there are any
    worst = float(np.abs(np.exp(one.log_probs) - np.exp(other.log_probs)).max(initial=0.0))
    if worst > TOLERANCE:
        raise CheckFailed(f"a draft probability differs by {worst:.2g} {when}; it must be the same draft.")


def _check_asking_twice(drafter: Drafter, target: Target, prompt: Int32) -> None:
    context, _ = _begin(drafter, target, [prompt])
    first = _guard("draft", lambda: drafter.draft(context))
    second = _guard("draft", lambda: drafter.draft(context))
    _compare("when it is asked twice", first, second)


def _check_text(drafter: Drafter, target: Target, prompt: Int32, plain: Run) -> None:
    """The loop's text does not depend on the drafter."""
    run = _guard(
        "generate",
        lambda: generate(
            target, prompt, drafter, max_new_tokens=NUM_TOKENS, node_budget=NODE_BUDGET, stop_ids=()
        ),
    )
    if run.token_ids.tolist() != plain.token_ids.tolist():
        place = int(np.flatnonzero(run.token_ids != plain.token_ids)[0])
        raise CheckFailed(
            f"token {place} is {run.token_ids[place]} with the drafter and {plain.token_ids[place]} without; "
            "it must change the target's state (its cache, weights or backend)."
        )


def _guard(verb: str, call: Callable[[], T]) -> T:
    """Turn what a drafter raises into a failed check that says where."""
    try:
        return call()
    except CheckFailed:
        raise
    except Exception as error:  # whatever a foreign object raises
        raise CheckFailed(f"{verb} raised {type(error).__name__}: {error}") from error

"""One decoding: draft, build, verify, accept, compact, until a stop id or the length."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from kdnb.arrays import Float32, Int32
from kdnb.backends.base import Array
from kdnb.device_rounds import DeviceRounds
from kdnb.draft import Draft, DraftContext
from kdnb.drafters.base import Drafter
from kdnb.errors import DrafterError
from kdnb.model import Target
from kdnb.noise import Noise
from kdnb.policies import check_tree
from kdnb.policies import resolve as resolve_policy
from kdnb.reference.top_k import top_k_log_probs
from kdnb.run import Run
from kdnb.settings import Settings
from kdnb.trace import RoundTrace
from kdnb.tree import DraftTree
from kdnb.verify_rules import check_acceptance
from kdnb.verify_rules import resolve as resolve_rule

FIRST_WINDOW = 1024  # drafted nodes that a new cache has room for; it grows if a tree is larger
TARGET_TOP = 8  # target choices per node that a full trace keeps


@dataclass
class Decoding:
    """One sequence being decoded: the state between rounds.

    Iterating runs it: the prompt first, then one round per step. A decoding that was interrupted, at
    whatever point, can be read and iterated on: a round that did not end is undone, and the text decoded
    so far is run again.
    """

    target: Target
    drafter: Drafter | None
    prompt_ids: Int32
    settings: Settings
    token_ids: list[int] = field(default_factory=list)  # emitted so far, the prompt not included
    rounds: list[RoundTrace] = field(default_factory=list)
    stop_reason: Literal["stop_id", "length"] | None = None
    prefill_us: float | None = None
    prefill_min_gap: float | None = None

    def __post_init__(self) -> None:
        choices = self.settings
        self.policy = resolve_policy(choices.policy)
        self.rule = resolve_rule(choices.temperature, choices.top_k, choices.top_p, choices.verify_rule)
        config_stops = self.target.config.stop_ids
        self.stop_ids = frozenset(config_stops if choices.stop_ids is None else choices.stop_ids)
        self.cache = self.target.new_cache(
            len(self.prompt_ids) + choices.max_new_tokens + min(choices.node_budget, FIRST_WINDOW) + 1
        )
        self._unfinished = False  # whether a prefill or round began and did not end
        self.device_rounds = None if DeviceRounds.why_not(self) else DeviceRounds(self)
        self._device_is_behind = True  # the device has yet to be told where the decoding stands

    def __iter__(self) -> Iterator[RoundTrace]:
        if self.prefill_us is None:
            self.prefill()
        while self.stop_reason is None:
            yield self.round()

    def prefill(self) -> None:
        """Run the prompt; its last logits choose the first token, the root of the first tree."""
        with self._arithmetic():
            self._prefill()

    def round(self) -> RoundTrace:
        """Draft, build, verify, accept, compact."""
        with self._arithmetic():
            return self._round()

    def run_all(self) -> None:
        """All that is left, the prompt included; a device that can runs it as one graph."""
        if self.prefill_us is None:
            self.prefill()
        if self.device_rounds is None:
            while self.stop_reason is None:
                self.round()
        elif self.stop_reason is None:
            with self._arithmetic():
                self._run_all_on_device(self.device_rounds)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return self.target.backend.row_by_row() if self.settings.deterministic else nullcontext()

    def _prefill(self) -> None:
        watch = _StageClock()
        self.token_ids, self.stop_reason = [], None
        logits = self._run_text(self.prompt_ids)
        last = DraftTree.root_only(int(self.prompt_ids[-1]))
        noise = Noise(self.settings.seed, len(self.prompt_ids) - 1)
        acceptance = self.rule(last, self._host_logits(logits), noise)
        check_acceptance(last, acceptance, self.target.config.vocab_size)
        self._emit([acceptance.bonus_id])
        self.prefill_min_gap = acceptance.min_gap
        watch.mark("prefill")
        self.prefill_us = watch.times_us["prefill"]
        self._tell([acceptance.bonus_id])

    def _run_text(self, text: Int32) -> Array:
        """Fill the cache and the drafter with a text, from nothing; the last row's logits."""
        self.cache.truncate(0)
        if self.drafter is not None:
            self.drafter.start(self.target)
        step = self.settings.prefill_chunk
        for start in range(0, len(text), step):
            chunk = text[start : start + step]
            result = self.target.forward(chunk, self.cache, taps=self._tap_names, logits="last", host=False)
            self.cache.commit()
            if self.drafter is not None:
                self.drafter.commit(chunk, result.taps)
        return result.logits

    def _undo(self) -> None:
        """Go back to the last round that ended."""
        first = self.token_ids[:1]
        self.token_ids, self.stop_reason = [], None
        self._emit([*first, *(int(token_id) for step in self.rounds for token_id in step.emitted)])
        self._run_text(self._text[:-1])
        self._unfinished = False
        self._device_is_behind = True

    def _round(self) -> RoundTrace:
        if self._unfinished:
            self._undo()
        self._unfinished = True
        if self.device_rounds is not None:
            return self._round_on_device(self.device_rounds)
        clock = _StageClock()
        prefix_len = self.cache.prefix_len
        noise = Noise(self.settings.seed, prefix_len)

        draft = self._draft(noise)
        clock.mark("draft")

        tree = self._build(draft)
        clock.mark("build")

        result = self.target.forward(
            tree.token_ids,
            self.cache,
            positions=prefix_len + tree.depths,
            visible=tree.visible,
            taps=self._tap_names,
            host=False,
        )
        logits = self._host_logits(result.logits)
        clock.mark("verify")

        acceptance = self.rule(tree, logits, noise)
        check_acceptance(tree, acceptance, self.target.config.vocab_size)
        path = tree.token_ids[acceptance.accepted]
        clock.mark("accept")

        self.cache.commit(acceptance.accepted)
        if self.drafter is not None:
            take = self.target.backend.take_rows
            kept = {name: take(x, acceptance.accepted) for name, x in result.taps.items()}
            self.drafter.commit(path, kept)
        clock.mark("compact")

        known = len(self.token_ids)
        self._emit([*path[1:].tolist(), acceptance.bonus_id])
        emitted = self.token_ids[known:]
        trace = RoundTrace(
            prefix_len=prefix_len,
            tree=tree,
            next_ids=acceptance.next_ids,
            accepted=acceptance.accepted,
            bonus_id=acceptance.bonus_id,
            emitted=np.array(emitted, dtype=np.int32),
            times_us=clock.times_us,
            min_gap=acceptance.min_gap,
            **self._full_trace(prefix_len, tree, draft, logits, result.visible_words),
        )
        self.rounds.append(trace)
        self._unfinished = False
        self._tell(emitted)
        return trace

    def _round_on_device(self, device: DeviceRounds) -> RoundTrace:
        began = time.perf_counter()
        self._tell_device(device)
        trace = replace(device.round(), times_us={"round": (time.perf_counter() - began) * 1e6})
        self._emit(trace.emitted.tolist())
        self.rounds.append(trace)
        self._unfinished = False
        self._tell(trace.emitted.tolist())
        return trace

    def _run_all_on_device(self, device: DeviceRounds) -> None:
        if self._unfinished:
            self._undo()
        self._unfinished = True
        self._tell_device(device)
        try:
            for token_ids in device.decode():
                self._tell(token_ids)
        finally:  # an interrupt lets the device end its round: read what it did
            for trace in device.records():
                self._emit(trace.emitted.tolist())
                self.rounds.append(trace)
            self._unfinished = False

    def _tell_device(self, device: DeviceRounds) -> None:
        if self._device_is_behind:
            device.reset()
            self._device_is_behind = False

    def run(self, stop_reason: str, wall_us: float | None = None) -> Run:
        """What was decoded so far, as a Run."""
        target, settings = self.target, self.settings
        return Run(
            prompt_ids=self.prompt_ids,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            rounds=list(self.rounds),
            stop_reason=stop_reason,
            settings={
                "target": target.name,
                "drafter": None if self.drafter is None else repr(self.drafter),
                "policy": repr(self.policy),
                "verify_rule": repr(self.rule),
                "lossless": bool(self.rule.lossless),
                "node_budget": settings.node_budget,
                "max_new_tokens": settings.max_new_tokens,
                "temperature": settings.temperature,
                "top_k": settings.top_k,
                "top_p": settings.top_p,
                "seed": settings.seed,
                "deterministic": settings.deterministic,
                "stop_ids": sorted(self.stop_ids),
                "trace": settings.trace,
                "backend": target.backend.name,
                "dtype": target.backend.dtype,
            },
            tokenizer=target.tokenizer,
            prefill_us=self.prefill_us,
            prefill_min_gap=self.prefill_min_gap,
            wall_us=wall_us,
        )

    @property
    def root_id(self) -> int:
        """The last emitted token: not in the cache yet, the root of the next tree."""
        return self.token_ids[-1]

    @property
    def _text(self) -> Int32:
        """The prompt and what was emitted; all but the last token, the root, are committed."""
        return np.concatenate([self.prompt_ids, np.array(self.token_ids, dtype=np.int32)])

    @property
    def _tap_names(self) -> Sequence[str]:
        return () if self.drafter is None else self.drafter.tap_names

    def _draft(self, noise: Noise) -> Draft | DraftTree:
        if self.drafter is None or self.settings.node_budget == 0:
            return DraftTree.root_only(self.root_id)
        context = DraftContext(
            token_ids=self._text,
            prefix_len=self.cache.prefix_len,
            root_id=self.root_id,
            node_budget=self.settings.node_budget,
            noise=noise,
        )
        draft = self.drafter.draft(context)
        if isinstance(draft, Draft) and draft.noise is None:
            draft.noise = noise  # so that policies which sample work with every drafter
        return draft

    def _build(self, draft: Draft | DraftTree) -> DraftTree:
        if isinstance(draft, DraftTree):  # the drafter built its own
            tree = draft
        elif not isinstance(draft, Draft):
            raise DrafterError(
                f"{self.drafter!r} drafted a {type(draft).__name__}; return a Draft or a DraftTree."
            )
        else:
            tree = self.policy(draft, self.settings.node_budget)
        check_tree(tree, self.root_id, self.settings.node_budget, self.target.config.vocab_size)
        return tree

    def _emit(self, token_ids: Sequence[int]) -> None:
        """Add tokens to the output until a stop id or the length."""
        for token_id in token_ids:
            self.token_ids.append(token_id)
            if token_id in self.stop_ids:
                self.stop_reason = "stop_id"
            elif len(self.token_ids) == self.settings.max_new_tokens:
                self.stop_reason = "length"
            if self.stop_reason is not None:
                break

    def _tell(self, token_ids: Sequence[int]) -> None:
        """Stream tokens; last in a round, so that a callback which raises leaves everything consistent."""
        if self.settings.on_token is not None:
            for token_id in token_ids:
                self.settings.on_token(token_id)

    def _host_logits(self, logits: Array) -> Float32:
        host: Float32 = self.target.backend.download(logits)
        return host

    def _full_trace(
        self,
        prefix_len: int,
        tree: DraftTree,
        draft: Draft | DraftTree,
        logits: Float32,
        visible_words: Any,
    ) -> dict[str, Any]:
        if self.settings.trace == "light":
            return {}
        vocab_size = self.target.config.vocab_size
        top_ids, top_log_probs = top_k_log_probs(logits, min(TARGET_TOP, vocab_size))
        full: dict[str, Any] = {
            "policy": repr(self.policy),
            "verify_rule": repr(self.rule),
            "target_log_prob": _log_prob_of_nodes(tree, logits),
            "cache_row": np.arange(prefix_len, prefix_len + tree.num_nodes, dtype=np.int32),
            "target_top_ids": top_ids,
            "target_top_log_probs": top_log_probs,
            "visible_words": visible_words,
        }
        if isinstance(draft, Draft):
            k = min(self.settings.node_budget, vocab_size)
            full["draft_top_ids"], full["draft_top_log_probs"] = draft.top_k(k)
        return full


class _StageClock:
    """Microseconds between marks."""

    def __init__(self) -> None:
        self.times_us: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.times_us[stage] = (now - self._last) * 1e6
        self._last = now


def _log_prob_of_nodes(tree: DraftTree, logits: Float32) -> Float32:
    """Target log-prob of each node's token after its parent: float32 [num_nodes], root 0."""
    out = np.zeros(tree.num_nodes, dtype=np.float32)
    parents = tree.parents[1:]
    rows = logits.astype(np.float64)
    top = rows.max(axis=1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1))
    out[1:] = rows[parents, tree.token_ids[1:]] - log_sum[parents]
    return out

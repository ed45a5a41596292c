"""What a drafter proposes: one distribution per depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Float32, HostArray, Int32
from kdnb.backends.base import Array, Backend
from kdnb.errors import DrafterError, ShapeError
from kdnb.noise import Noise
from kdnb.reference.top_k import log_sum_exp, top_k, top_k_log_probs

MAX_ROUNDING = 1e-3  # by which a log-prob may exceed 0 before it is no log-prob


class Draft:
    """Marginals of one block: the distribution of the token at each depth below the root.

    Args:
        root_id: Token of the root; -1 if it is not known yet.
        logits: float [max_depth, vocab_size]; numpy, or an array of `backend`. -inf is a token that
            cannot come. max_depth may be 0: nothing is drafted.
        backend: Where logits live; None is numpy.
        noise: The round's noise, for policies that sample.

    Raises:
        DrafterError: if logits have no two axes, or a row holds NaN, +inf, or nothing but -inf. On a
            backend the values are looked at when they are first asked for.
    """

    def __init__(
        self,
        root_id: int,
        logits: Array,
        backend: Backend | None = None,
        noise: Noise | None = None,
    ) -> None:
        if backend is None:
            logits = np.asarray(logits, dtype=np.float32)
        if len(logits.shape) != 2 or not logits.shape[1]:
            raise DrafterError(
                f"draft logits have shape {list(logits.shape)}; they must be [max_depth, vocab_size]."
            )
        self.root_id = root_id
        self.noise = noise
        self._logits = logits
        self._backend = backend
        self._log_probs: Float32 | None = None
        self._are_log_probs = False
        if backend is None:
            _check_rows(logits)

    @classmethod
    def from_log_probs(
        cls,
        root_id: int,
        log_probs: Sequence[Sequence[float]] | HostArray,
        noise: Noise | None = None,
    ) -> "Draft":
        """A draft from log-probs, which are used as they are: their sum is not checked.

        Args:
            root_id: Token of the root.
            log_probs: float32 [max_depth, vocab_size]; at most 0.
            noise: The round's noise, for policies that sample.

        Raises:
            DrafterError: as the class, and if a log-prob is positive.
        """
        draft = cls(root_id, log_probs, noise=noise)
        above = np.argwhere(draft._logits > MAX_ROUNDING)
        if above.size:
            depth, token_id = above[0].tolist()
            raise DrafterError(
                f"log_probs[{depth}, {token_id}] is {draft._logits[depth, token_id]:g}, but a log-prob is "
                "at most 0; use Draft(root_id, logits) for logits."
            )
        draft._logits = np.minimum(draft._logits, 0)  # rounding; a child must not outscore its parent
        draft._are_log_probs = True
        return draft

    def __repr__(self) -> str:
        return f"Draft(max_depth={self.max_depth}, vocab_size={self.vocab_size})"

    @property
    def max_depth(self) -> int:
        """Depths the draft reaches."""
        return int(self._logits.shape[0])

    @property
    def vocab_size(self) -> int:
        """Tokens per depth."""
        return int(self._logits.shape[1])

    @property
    def log_probs(self) -> Float32:
        """float32 [max_depth, vocab_size]; log-softmax over the full vocabulary at temperature 1."""
        if self._log_probs is None:
            host = self._logits
            if self._backend is not None:
                host = np.asarray(self._backend.download(self._logits), dtype=np.float32)
                _check_rows(host)
            self._log_probs = host if self._are_log_probs else (host - log_sum_exp(host)).astype(np.float32)
        return self._log_probs

    def top_k(self, k: int) -> tuple[Int32, Float32]:
        """Each depth's best tokens: ids int32 and log-probs float32, [max_depth, min(k, vocab_size)].

        Ranked by logit, equal logits to the lower id.

        Raises:
            DrafterError: if a row holds NaN, +inf, or nothing but -inf.
        """
        k = min(k, self.vocab_size)
        if k == 0 or self.max_depth == 0:  # nothing to compute, and no kernel has to cope with it
            shape = (self.max_depth, k)
            return np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
        if self._are_log_probs:
            ids = top_k(self._logits, k)
            return ids, np.take_along_axis(self._logits, ids, axis=1)
        if self._backend is None:
            return top_k_log_probs(self._logits, k)
        try:
            ids, log_probs = self._backend.top_k_log_probs(self._logits, k)
        except ShapeError as error:
            raise DrafterError(f"draft {error}") from None
        if np.isnan(log_probs).any():
            raise DrafterError("draft logits hold NaN; the drafter is broken.")
        return ids, np.minimum(log_probs, np.float32(0))


def _check_rows(logits: Float32) -> None:
    tops = logits.max(axis=1)  # max hands a NaN on
    broken = np.flatnonzero(~np.isfinite(tops))
    if broken.size:
        row = int(broken[0])
        what = {np.inf: "plus infinity", -np.inf: "minus infinity only"}.get(float(tops[row]), "NaN")
        raise DrafterError(f"draft logits of depth {row + 1} hold {what}; the drafter is broken.")


@dataclass(frozen=True, eq=False)
class DraftContext:
    """What a drafter is told at the start of a round.

    Args:
        token_ids: int32 [prefix_len + 1]; the committed tokens, then the root.
        prefix_len: Committed rows of the target's cache.
        root_id: The last emitted token.
        node_budget: Drafted nodes allowed, the root not counted.
        noise: The round's noise, for drafters that sample.
    """

    token_ids: Int32
    prefix_len: int
    root_id: int
    node_budget: int
    noise: Noise

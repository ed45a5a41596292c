"""What a drafter proposes: one distribution per depth."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Float32, HostArray, Int32
from kdnb.backends.base import Array, Backend
from kdnb.errors import DrafterError
from kdnb.noise import Noise
from kdnb.reference.top_k import log_sum_exp, top_k, top_k_log_probs


class Draft:
    """Marginals of one block: the distribution of the token at each depth below the root.

    Args:
        root_id: Token of the root.
        logits: [max_depth, vocab_size]; numpy, or an array of `backend`.
        backend: Where logits live; None is numpy.
        noise: The round's noise, for policies that sample.

    Raises:
        DrafterError: if logits have no two axes, or hold NaN.
    """

    def __init__(
        self,
        root_id: int,
        logits: Array,
        backend: Backend | None = None,
        noise: Noise | None = None,
    ) -> None:
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
            self._logits = np.asarray(logits, dtype=np.float32)
            if np.isnan(self._logits).any():
                raise DrafterError("draft logits hold NaN; the drafter is broken.")

    @classmethod
    def from_log_probs(
        cls,
        root_id: int,
        log_probs: Sequence[Sequence[float]] | HostArray,
        noise: Noise | None = None,
    ) -> "Draft":
        """A draft from log-probs that are already normalised; they are used as they are.

        Args:
            root_id: Token of the root.
            log_probs: float32 [max_depth, vocab_size].
            noise: The round's noise, for policies that sample.
        """
        draft = cls(root_id, np.asarray(log_probs, dtype=np.float32), noise=noise)
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
            host = self._host_logits()
            self._log_probs = host if self._are_log_probs else (host - log_sum_exp(host)).astype(np.float32)
        return self._log_probs

    def top_k(self, k: int) -> tuple[Int32, Float32]:
        """Each depth's best tokens: ids int32 and log-probs float32, [max_depth, min(k, vocab_size)].

        Ranked by logit, equal logits to the lower id.
        """
        if self._are_log_probs:
            ids = top_k(self._logits, k)
            return ids, np.take_along_axis(self._logits, ids, axis=1)
        if self._backend is None:
            return top_k_log_probs(self._logits, k)
        return self._backend.top_k_log_probs(self._logits, min(k, self.vocab_size))

    def _host_logits(self) -> Float32:
        if self._backend is None:
            return np.asarray(self._logits, dtype=np.float32)
        return np.asarray(self._backend.download(self._logits), dtype=np.float32)


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

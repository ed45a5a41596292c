"""A drafter that asks the target itself, and blurs the answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kdnb.arrays import Int32, check_integer
from kdnb.backends.base import Array
from kdnb.draft import Draft, DraftContext
from kdnb.errors import ConfigError, DrafterError
from kdnb.noise import Noise

if TYPE_CHECKING:
    from kdnb.model import Target

NOISE_STREAM = 4


class NoisyOracle:
    """Runs the target ahead greedily and adds noise to its logits: acceptance as wanted, no speed.

    For teaching and tests: with noise 0 every greedy draft is accepted, with much noise hardly any.

    Args:
        target: The target to ask; its own decoding is not touched.
        max_depth: Tokens to run ahead.
        noise: Standard deviation added to each logit.
        seed: Of that noise.

    Raises:
        ConfigError: if max_depth or noise is out of range.
    """

    tap_names: tuple[str, ...] = ()

    def __init__(self, target: "Target", max_depth: int = 7, noise: float = 1.0, seed: int = 0) -> None:
        check_integer("max_depth", max_depth, 1)
        if not noise >= 0:
            raise ConfigError(f"noise is {noise}; use 0 or more.")
        self.max_depth = max_depth
        self._noise = noise
        self._seed = seed
        self.start(target)

    def __repr__(self) -> str:
        return f"NoisyOracle(max_depth={self.max_depth}, noise={self._noise}, seed={self._seed})"

    def start(self, target: "Target") -> None:
        """Begin a new sequence; see Drafter."""
        self._target = target
        self._cache = target.new_cache()

    def commit(self, token_ids: Int32, features: Mapping[str, Array]) -> None:
        """See committed rows: the oracle's own cache follows."""
        self._target.forward(token_ids, self._cache, logits="last", host=False)
        self._cache.commit()

    def draft(self, context: DraftContext) -> Draft:
        """Propose what the target would say, blurred; see Drafter."""
        prefix_len = self._cache.prefix_len
        if prefix_len != context.prefix_len:
            raise DrafterError(
                f"the oracle has seen {prefix_len} committed rows but the cache holds {context.prefix_len}; "
                "call start, then commit every committed row."
            )
        rows = []
        token_id = context.root_id
        for _ in range(self.max_depth):
            logits = self._target.forward([token_id], self._cache, logits="last").logits[0]
            self._cache.commit()
            token_id = int(logits.argmax())
            rows.append(logits)
        self._cache.truncate(prefix_len)
        noise = Noise(self._seed, context.prefix_len)
        blur = [noise.normal(depth, NOISE_STREAM, len(row)) * self._noise for depth, row in enumerate(rows)]
        blurred = (np.stack(rows) + np.stack(blur)).astype(np.float32)
        return Draft(context.root_id, blurred, noise=context.noise)

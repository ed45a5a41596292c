"""Random numbers that depend on where they are used, not on what was drawn before."""

from dataclasses import dataclass

import numpy as np

from kdnb.arrays import Float32, Float64
from kdnb.errors import ConfigError

TARGET_STREAM = 0  # of the target's own choices; drafters and rejection use others


@dataclass(frozen=True)
class Noise:
    """The noise of one round.

    Every number is keyed by (seed, absolute position of the token it decides, token id), so plain
    decoding and every tree see the same noise for the same token, and emit the same text.

    Args:
        seed: Of the whole run, from 0 to 2**64 - 1.
        prefix_len: Committed rows when the round began: the root's position.

    Raises:
        ConfigError: if one of them is no integer or out of range.
    Source: numpy's Philox-4x64-10 (Salmon et al. 2011) with key (seed, stream) and counter words
        (0, 0, 0, position); a token takes the double of its own index in that stream.
    """

    seed: int
    prefix_len: int = 0

    def __post_init__(self) -> None:
        for name, top in (("seed", 2**64), ("prefix_len", 2**63)):
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or not 0 <= value < top:
                raise ConfigError(f"{name} is {value!r}; use an integer from 0 to {top - 1}.")

    def gumbel(self, depth: int, vocab_size: int) -> Float32:
        """Gumbel noise for the token drawn after a node at `depth`: float32 [vocab_size]."""
        u = self.uniform(depth, TARGET_STREAM, vocab_size)
        return (-np.log(-np.log(u))).astype(np.float32)

    def normal(self, depth: int, stream: int, count: int) -> Float64:
        """Standard normal numbers: float64 [count]; arguments as `uniform`."""
        return self._generator(depth, stream).standard_normal(count)

    def uniform(self, depth: int, stream: int, count: int) -> Float64:
        """Uniform numbers in the open interval (0, 1): float64 [count].

        Args:
            depth: Depth of the node after which the decided token comes.
            stream: Independent numbers for the same position; 0 is the target's.
            count: How many.
        """
        # random() gives multiples of 2**-53 in [0, 1); 0 has to go, and adding to all could give 1.0
        return np.maximum(self._generator(depth, stream).random(count), 2.0**-54)

    def _generator(self, depth: int, stream: int) -> np.random.Generator:
        position = int(self.prefix_len) + int(depth) + 1
        key = np.array([int(self.seed), stream], dtype=np.uint64)
        counter = np.array([0, 0, 0, position], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))

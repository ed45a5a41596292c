"""A drafter that knows the answer: the perfect one, and with faults as many as wanted."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kdnb.arrays import HostArray, Int32, check_integer
from kdnb.backends.base import Array
from kdnb.draft import Draft, DraftContext
from kdnb.errors import ConfigError, DrafterError
from kdnb.noise import Noise
from kdnb.run import Run

if TYPE_CHECKING:
    from kdnb.model import Target

SURE = 12.0  # nats by which the known token outweighs all others together, at any vocabulary size
ERROR_STREAM = 1  # of the draws that decide where it is wrong


class Replay:
    """Proposes a text it was given, by position; past its end every token is as likely as any other.

    Args:
        token_ids: The whole text, the prompt included, or a Run whose text to replay.
        block_size: Rows of a block: it proposes block_size - 1 tokens at once.
        error_rate: Share of positions where it proposes a wrong token instead, in [0, 1].
        seed: Which positions those are.

    Raises:
        ConfigError: if a value is out of range, or token_ids is no sequence of integers.
    """

    tap_names: tuple[str, ...] = ()

    def __init__(
        self,
        token_ids: Sequence[int] | HostArray | Run,
        block_size: int = 8,
        error_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        check_integer("block_size", block_size, 2)  # the root and one draft at least
        if not 0 <= error_rate <= 1:
            raise ConfigError(f"error_rate is {error_rate}; use a share from 0 to 1.")
        if isinstance(token_ids, Run):
            token_ids = np.concatenate([token_ids.prompt_ids, token_ids.token_ids])
        text = np.asarray(token_ids)
        if text.ndim != 1 or not np.issubdtype(text.dtype, np.integer):
            raise ConfigError(
                f"token_ids has dtype {text.dtype} and shape {list(text.shape)}; pass one sequence of ids."
            )
        self.max_depth = block_size - 1
        self._text = text
        self._error_rate = error_rate
        self._seed = seed
        self._vocab_size = 0

    def __repr__(self) -> str:
        return (
            f"Replay({len(self._text)} tokens, block_size={self.max_depth + 1}, "
            f"error_rate={self._error_rate})"
        )

    def start(self, target: "Target") -> None:
        """Begin a new sequence; see Drafter."""
        vocab_size = target.config.vocab_size
        foreign = np.flatnonzero((self._text < 0) | (self._text >= vocab_size))
        if foreign.size:
            raise DrafterError(
                f"token_ids[{foreign[0]}] is {self._text[foreign[0]]} but ids of the target go from 0 to "
                f"{vocab_size - 1}; it is another model's text."
            )
        self._vocab_size = vocab_size

    def commit(self, token_ids: Int32, features: Mapping[str, Array]) -> None:
        """See committed rows; positions are all it needs."""

    def draft(self, context: DraftContext) -> Draft:
        """Propose the known tokens after the root; see Drafter."""
        if not self._vocab_size:
            raise DrafterError("draft was called before start, which tells the vocabulary's size.")
        sure = SURE + math.log(self._vocab_size)
        logits = np.zeros((self.max_depth, self._vocab_size), dtype=np.float32)
        first = context.prefix_len + 1
        for depth, token_id in enumerate(self._text[first : first + self.max_depth].tolist()):
            wrong = Noise(self._seed, first + depth).uniform(0, ERROR_STREAM, 1)[0] < self._error_rate
            logits[depth, (token_id + 1) % self._vocab_size if wrong else token_id] = sure
        return Draft(context.root_id, logits, noise=context.noise)

"""Array aliases and the few checks that every module needs."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kdnb.errors import ConfigError, ShapeError, TokenError

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
UInt64: TypeAlias = NDArray[np.uint64]
Bool: TypeAlias = NDArray[np.bool_]
Float32: TypeAlias = NDArray[np.float32]
Float64: TypeAlias = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.floating[Any]]
HostArray: TypeAlias = NDArray[Any]

WORD_BITS = 64  # visibility words are uint64: bit j of word w is node 64 * w + j


def as_token_ids(token_ids: Sequence[int] | HostArray, vocab_size: int, name: str) -> Int32:
    """Return `token_ids` as int32 [count] after checking every id against the vocabulary.

    Args:
        token_ids: Vocabulary ids, a sequence or an integer array with one axis.
        vocab_size: Ids must lie in [0, vocab_size).
        name: What to call the argument in an error.

    Returns:
        int32 [count].

    Raises:
        TokenError: if there is no id, an id is not an integer, or one is out of range.
        ShapeError: if there is more than one axis.
    """
    ids = np.asarray(token_ids)
    if ids.ndim != 1:
        raise ShapeError(f"{name} has {ids.ndim} axes; pass one sequence of token ids.")
    if ids.size == 0:
        raise TokenError(f"{name} is empty; pass at least one token id.")
    if not np.issubdtype(ids.dtype, np.integer):
        raise TokenError(f"{name} has dtype {ids.dtype}; token ids must be integers.")
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if wrong.size:
        at = int(wrong[0])
        raise TokenError(
            f"{name}[{at}] is {int(ids[at])} but ids of this model go from 0 to {vocab_size - 1}; "
            "is this the tokenizer of another model?"
        )
    return ids.astype(np.int32)


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an int, if it is an integer in [least, most] (otherwise ConfigError)."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        limits = f"from {least} up" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} is {value!r}; use an integer {limits}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def pack_visible(visible: Bool) -> UInt64:
    """Pack a visibility matrix into 64-bit words.

    Args:
        visible: bool [rows, nodes]; True where the row may see the node.

    Returns:
        uint64 [rows, ceil(nodes / 64)]; bit j of word w is node 64 * w + j.
    Exact: integer op.
    """
    rows, nodes = visible.shape
    num_words = -(-nodes // WORD_BITS)
    packed = np.zeros((rows, num_words * 8), dtype=np.uint8)
    bits = np.packbits(visible, axis=1, bitorder="little")
    packed[:, : bits.shape[1]] = bits
    return packed.view("<u8").astype(np.uint64, copy=False)


def unpack_visible(words: UInt64, num_nodes: int) -> Bool:
    """Undo `pack_visible`: uint64 [rows, words] -> bool [rows, num_nodes]."""
    packed = np.ascontiguousarray(words, dtype="<u8").view(np.uint8)
    bits = np.unpackbits(packed, axis=1, bitorder="little", count=num_nodes)
    return bits.astype(np.bool_)

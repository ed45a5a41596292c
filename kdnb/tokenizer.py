"""Text to token ids and back: tokenizer.json, or Kimi's tiktoken.model."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kdnb.arrays import HostArray
from kdnb.config import TargetConfig
from kdnb.config_reader import read_json_object
from kdnb.errors import TokenError

MAX_CHARS = 400_000  # tiktoken's regex engine overflows beyond; longer text is encoded in pieces
MAX_RUN = 25_000  # of characters that are all white space, or all not
KIMI_SPECIALS = {  # places after the base ranks
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    22: "<think>",
    23: "</think>",
    254: "[UNK]",
    255: "[PAD]",
}
NUM_RESERVED = 256
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
NOT_HAN = r"(?!\p{Han})"  # tiktoken's engine has no class intersection
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?(?:{NOT_HAN}[{UPPER}])*(?:{NOT_HAN}[{LOWER}])+{CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?(?:{NOT_HAN}[{UPPER}])+(?:{NOT_HAN}[{LOWER}])*{CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
VISIBLE = str.maketrans({" ": "·", "\n": "⏎", "\t": "→", "\r": "␍"})


@runtime_checkable
class Tokenizer(Protocol):
    """What kdnb needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens in it are ordinary text."""

    def decode(self, token_ids: Sequence[int] | HostArray) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""

    def token_text(self, token_id: int) -> str:
        """One token in visible form: spaces as a middle dot, odd bytes as hexadecimal."""


def load_tokenizer(folder: Path, config: TargetConfig) -> Tokenizer | None:
    """Return a checkpoint's tokenizer, or None where the folder has none.

    Args:
        folder: The checkpoint.
        config: Its config.

    Raises:
        TokenError: if the tokenizer's file is damaged, or its library is not installed.
    """
    if (folder / "tokenizer.json").exists():
        return JsonTokenizer(folder / "tokenizer.json")
    if (folder / "tiktoken.model").exists():
        return KimiTokenizer(folder, config.vocab_size)
    return None


class JsonTokenizer:
    """A tokenizer.json, through the tokenizers library.

    Args:
        path: The file.

    Raises:
        TokenError: if it is damaged.
    """

    def __init__(self, path: Path) -> None:
        import tokenizers

        try:
            # read as text: the library's own reader cannot open every path
            self._inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise TokenError(f"{path.name} cannot be used: {error}.") from None
        self._bytes = _byte_level(json.loads(path.read_text(encoding="utf-8")))

    def __repr__(self) -> str:
        return f"JsonTokenizer({self._inner.get_vocab_size()} tokens)"

    def encode(self, text: str) -> list[int]:
        """See Tokenizer."""
        check_text(text)
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int] | HostArray) -> str:
        """See Tokenizer."""
        ids = [int(token_id) for token_id in token_ids]
        text: str = self._inner.decode(ids, skip_special_tokens=False)
        return text

    def token_text(self, token_id: int) -> str:
        """See Tokenizer."""
        piece = self._inner.id_to_token(token_id)
        if piece is None:
            return f"<{token_id}>"
        if self._bytes and all(char in self._bytes for char in piece):
            return visible_text(bytes(self._bytes[char] for char in piece))
        return piece.replace("▁", "·").translate(VISIBLE)


class KimiTokenizer:
    """Kimi's tiktoken.model: base64 tokens by rank, then 256 special tokens.

    Args:
        folder: Holds tiktoken.model and, often, tokenizer_config.json with the special tokens' names.
        vocab_size: The model's.

    Raises:
        TokenError: if tiktoken is not installed, or the file is damaged or of another size.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        try:
            import tiktoken
        except ImportError:
            raise TokenError("tiktoken.model needs the tiktoken package: pip install tiktoken.") from None
        ranks = _read_ranks(folder / "tiktoken.model")
        self._base = len(ranks)
        if self._base > vocab_size:
            raise TokenError(
                f"tiktoken.model has {self._base} tokens but the model's vocabulary {vocab_size}."
            )
        self._names = _special_names(folder, self._base, vocab_size)
        self._ids = {name: token_id for token_id, name in self._names.items()}
        self._inner = tiktoken.Encoding(
            name="kimi",
            pat_str=KIMI_PATTERN,
            mergeable_ranks=ranks,
            special_tokens=self._ids,
        )

    def __repr__(self) -> str:
        return f"KimiTokenizer({self._base} + {len(self._names)} tokens)"

    def encode(self, text: str) -> list[int]:
        """See Tokenizer."""
        check_text(text)
        pieces = (piece for start in range(0, len(text), MAX_CHARS)
                  for piece in _split_runs(text[start : start + MAX_CHARS]))  # fmt: skip
        return [i for piece in pieces for i in self._inner.encode(piece, disallowed_special=())]

    def decode(self, token_ids: Sequence[int] | HostArray) -> str:
        """See Tokenizer."""
        return b"".join(map(self._bytes_of, token_ids)).decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        """See Tokenizer."""
        if token_id in self._names:
            return self._names[token_id]
        return visible_text(self._bytes_of(token_id))

    def _bytes_of(self, token_id: int) -> bytes:
        try:
            return bytes(self._inner.decode_single_token_bytes(int(token_id)))
        except KeyError:
            raise TokenError(f"{token_id} is no token of this tokenizer.") from None

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of a conversation, ending where the assistant's answer begins.

        Args:
            messages: {"role": "system" | "user" | "assistant", "content": text} each.

        Raises:
            TokenError: if a role is unknown.
        """
        ids: list[int] = []
        for message in messages:
            if not {"role", "content"} <= set(message):
                raise TokenError(f"the message has {list(message)}; it needs a role and a content.")
            ids += self._header(message["role"])
            ids += [*self.encode(message["content"]), self._ids["<|im_end|>"]]
        return ids + self._header("assistant")

    def _header(self, role: str) -> list[int]:
        mark = f"<|im_{role}|>"
        if role not in ("system", "user", "assistant"):
            raise TokenError(f'role is "{role}"; use system, user or assistant.')
        return [self._ids[mark], *self.encode(role), self._ids["<|im_middle|>"]]


def check_text(text: str) -> None:
    """Refuse text that no UTF-8 can hold (TokenError)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenError(
            f"the text has a broken character at {error.start}; it must be what UTF-8 can hold."
        ) from None


def visible_text(data: bytes) -> str:
    """Bytes in printable form: white space as signs, what is no UTF-8 as hexadecimal."""
    text = data.decode("utf-8", errors="backslashreplace").translate(VISIBLE)
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TokenError(f"{path.name} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise TokenError(
                f"{path.name} line {number} is not a base64 token and a rank; fetch it again."
            ) from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenError(f"{path.name} does not number its {len(ranks)} tokens from 0 up.")
    absent = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if absent:
        raise TokenError(
            f"{path.name} lacks {len(absent)} of the 256 single bytes, first {absent[0]}; fetch it again."
        )
    return ranks


def _special_names(folder: Path, base: int, vocab_size: int) -> dict[int, str]:
    """Names of the ids from `base` on: Kimi's own, over them what tokenizer_config.json says."""
    count = max(NUM_RESERVED, vocab_size - base)
    names = {
        base + place: KIMI_SPECIALS.get(place, f"<|reserved_token_{base + place}|>") for place in range(count)
    }
    path = folder / "tokenizer_config.json"
    if path.exists():
        added: Any = read_json_object(path).get("added_tokens_decoder") or {}
        try:
            names |= {int(key): str(facts["content"]) for key, facts in added.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise TokenError(
                f"{path.name}: added_tokens_decoder must map ids to objects with a content."
            ) from None
    return names


def _split_runs(text: str) -> list[str]:
    """Cut stretches of one kind (white space or not) that are too long for the pattern."""
    pieces = []
    start = 0
    for run in re.finditer(r"\s+|\S+", text):
        for cut in range(run.start() + MAX_RUN, run.end(), MAX_RUN):
            pieces.append(text[start:cut])
            start = cut
    return [*pieces, text[start:]] if start < len(text) else pieces


def _byte_level(spec: Mapping[str, Any]) -> dict[str, int]:
    """The characters that stand for bytes, if the tokenizer is byte-level; otherwise empty."""
    decoder = spec.get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    return byte_of_char() if any(part.get("type") == "ByteLevel" for part in parts) else {}


@lru_cache(maxsize=1)
def byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    table |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return table

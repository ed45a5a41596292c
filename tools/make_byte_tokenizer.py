"""Write the golden pair's tokenizer.json: token id = byte value, then four special tokens.

python tools/make_byte_tokenizer.py
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kdnb.shipped import shipped_folder
from kdnb.tokenizer import byte_of_char

SPECIALS = ("<|mask|>", "<|eos|>", "<|bos|>", "<|pad|>")  # ids 256 to 259


def main(folder: Path) -> None:
    """Write tokenizer.json into a folder."""
    vocab = byte_of_char()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main(shipped_folder("golden", "target"))

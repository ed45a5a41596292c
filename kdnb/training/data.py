"""The corpus as tokens, with the record of what is in it."""

import gzip
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from kdnb.training.corpus import (
    Package,
    choose_held_out,
    drop_near_duplicates,
    find_packages,
    read_packages,
)
from kdnb.training.recipe import EOS_ID, SPECIALS, Recipe

UInt16 = NDArray[np.uint16]
# words, single digits, signs with the line's end, white space without the blank before the next word
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BATCH = 2048  # texts per call of the tokenizer


@dataclass(frozen=True)
class Corpus:
    """Tokens of the training and the held-out text.

    Args:
        folder: Holds tokenizer.json, manifest.json, files.tsv.gz and the tokens.
        train: uint16 [tokens]; documents, each followed by eos.
        held_out: The same, of packages that training never sees.
        token_bytes: int64 [vocab_size]; bytes of text that each id stands for.
        manifest: What is in it.
    """

    folder: Path
    train: UInt16
    held_out: UInt16
    token_bytes: NDArray[np.int64]
    manifest: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        """Ids of the tokenizer."""
        return len(self.token_bytes)

    @property
    def tokenizer(self) -> Path:
        """Its tokenizer.json."""
        return self.folder / "tokenizer.json"

    @classmethod
    def load(cls, folder: Path) -> "Corpus":
        """Open a prepared corpus."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        pieces = [tokenizer.id_to_token(token_id) or "" for token_id in range(tokenizer.get_vocab_size())]
        sizes = [0 if piece in SPECIALS else len(piece) for piece in pieces]  # a character is a byte
        return cls(
            folder,
            np.load(folder / "train.npy"),
            np.load(folder / "held_out.npy"),
            np.array(sizes, dtype=np.int64),
            json.loads((folder / "manifest.json").read_text(encoding="utf-8")),
        )

    def prompts(self, count: int, length: int, rng: np.random.Generator) -> list[list[int]]:
        """Token ids from random places inside held-out documents, none across a document's end."""
        tokens = self.held_out.astype(np.int64)
        inside = np.lib.stride_tricks.sliding_window_view(tokens != EOS_ID, length).all(axis=1)
        starts = rng.choice(np.flatnonzero(inside), count, replace=False)
        return [tokens[start : start + length].tolist() for start in np.sort(starts)]


def prepare(folder: Path, recipe: Recipe, seed: int, trained: Path | None = None) -> Corpus:
    """Collect, clean and encode the corpus, or open it if the folder has one.

    Args:
        folder: Where it is kept.
        recipe: Says how much of it.
        seed: Chooses the held-out packages and the order.
        trained: A tokenizer.json to use, if it exists: that of a target which is trained already.
    """
    if not (folder / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _collect(folder, recipe, seed, trained)
    return Corpus.load(folder)


def _collect(folder: Path, recipe: Recipe, seed: int, trained: Path | None) -> None:
    began = time.monotonic()
    rng = np.random.default_rng(seed)
    found = find_packages()
    usable = [package for package in found if package.is_permissive]
    if recipe.name == "smoke":  # a few small packages, so that one can be held out
        usable = [p for p in usable if 10 <= len(p.paths) <= 60][:24]
    read_packages(usable, recipe.max_corpus_bytes, min(16, os.cpu_count() or 1))
    held_out = choose_held_out(usable, recipe.held_out_share, seed)
    training = [package for package in usable if package not in held_out]
    drop_near_duplicates([*held_out, *training])
    print(
        f"corpus: {len(usable)} of {len(found)} packages read, {time.monotonic() - began:.0f} s", flush=True
    )
    texts = [source.text for package in training for source in package.sources]
    rng.shuffle(texts)
    if trained is not None and trained.exists():
        tokenizer = Tokenizer.from_file(str(trained))
    else:
        tokenizer = train_tokenizer(texts, recipe)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    print(f"corpus: tokenizer ready, {time.monotonic() - began:.0f} s", flush=True)
    train = _encode(tokenizer, texts)
    held = _encode(tokenizer, [source.text for package in held_out for source in package.sources])
    np.save(folder / "train.npy", train)
    np.save(folder / "held_out.npy", held)
    _record(folder, found, held_out)
    manifest = {
        "seed": seed,
        "train": {"bytes": sum(p.num_bytes for p in training), "files": len(texts), "tokens": len(train)},
        "held_out": {
            "bytes": sum(p.num_bytes for p in held_out),
            "files": sum(len(p.sources) for p in held_out),
            "tokens": len(held),
        },
        "packages": [_facts(package, package in held_out) for package in usable],
        "left_out": [
            {"name": p.name, "version": p.version, "licence": p.licence} for p in found if p not in usable
        ],
        "seconds": round(time.monotonic() - began, 1),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _facts(package: Package, is_held_out: bool) -> dict[str, Any]:
    return {
        "name": package.name,
        "version": package.version,
        "licence": package.licence,
        "part": "held_out" if is_held_out else "train",
        "files": len(package.sources),
        "bytes": package.num_bytes,
        "dropped": package.dropped,
    }


def _record(folder: Path, packages: list[Package], held_out: list[Package]) -> None:
    """Write files.tsv.gz: part, package, sha256 and path of every file used."""
    with gzip.GzipFile(folder / "files.tsv.gz", "wb", mtime=0) as file:
        for package in packages:
            part = "held_out" if package in held_out else "train"
            for source in package.sources:
                file.write(f"{part}\t{package.name}\t{source.sha256}\t{source.path}\n".encode())


def train_tokenizer(texts: list[str], recipe: Recipe) -> Tokenizer:
    """A byte-level BPE on as many of the texts as the recipe says; special tokens take the first ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def sample() -> Iterator[str]:
        left = recipe.tokenizer_bytes
        for text in texts:
            if left <= 0:
                return
            left -= len(text)
            yield text

    tokenizer.train_from_iterator(sample(), trainer)
    return tokenizer


def _encode(tokenizer: Tokenizer, texts: list[str]) -> UInt16:
    tokenizer.encode_special_tokens = True  # a special token's name in a text is text
    parts = []
    for start in range(0, len(texts), BATCH):
        for encoded in tokenizer.encode_batch_fast(texts[start : start + BATCH], add_special_tokens=False):
            parts.append(np.array([*encoded.ids, EOS_ID], dtype=np.uint16))
    return np.concatenate(parts)

"""Where the text comes from: Python source of this machine's own environment, with its licences."""

import hashlib
import importlib.metadata
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from kdnb.arrays import UInt64

PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|Python-2\.0|ISC|zlib|Unlicense|CC0|HPND|"
    r"Public Domain|BSL-1\.0|NCSA|CNRI)\b",
    re.IGNORECASE,
)
OTHER = re.compile(
    r"GPL|General Public|MPL|Mozilla|EPL|Eclipse|CDDL|proprietary|nvidia|commercial|CC-BY-(NC|SA)", re.I
)
VENDORED = re.compile(r"(^|/)(_?vendor(ed)?|_?third_?party|3rdparty|extern(als?)?|site-packages)(/|$)")
MAX_FILE_BYTES = 400_000  # beyond are tables, not programs
MAX_LINE_CHARS = 1000
MIN_LINE_CHARS = 24  # shorter lines are everybody's
MIN_NEW_SHARE = 0.5  # of a file's lines, or it is a near-duplicate
HELD_OUT_BYTES = (40_000, 4_000_000)  # of a package that may be held out: neither a scrap nor a pillar


@dataclass(frozen=True)
class Source:
    """One file: its text, the hash of its bytes, and the hashes of its longer lines."""

    path: str
    text: str
    sha256: str
    lines: UInt64


@dataclass
class Package:
    """One distribution, and of it what is kept.

    Args:
        name: Normalised name; "cpython" is the standard library.
        version: Its version.
        licence: What its metadata says.
        root: Folder that its paths are relative to.
        paths: Its Python files.
        sources: Files kept.
        dropped: Files left out, by reason.
    """

    name: str
    version: str
    licence: str
    root: Path
    paths: list[str]
    sources: list[Source] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the text kept."""
        return sum(len(source.text.encode()) for source in self.sources)

    @property
    def is_permissive(self) -> bool:
        """Whether the licence is known and permissive in all its parts."""
        return bool(PERMISSIVE.search(self.licence)) and not OTHER.search(self.licence)


def find_packages() -> list[Package]:
    """The standard library and every installed distribution with Python files, by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [str(path.relative_to(root)) for path in root.rglob("*.py")]
    paths = sorted(path for path in paths if "-packages/" not in path)
    found = {"cpython": Package("cpython", platform.python_version(), "PSF-2.0", root, paths)}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        files = sorted(str(path) for path in distribution.files or () if path.suffix == ".py")
        files = [path for path in files if not path.startswith("..")]
        if files and name not in found and name != "kdnb":
            root = Path(str(distribution.locate_file("")))
            found[name] = Package(name, distribution.version, _licence(distribution), root, files)
    return [found[name] for name in sorted(found)]


def _licence(distribution: importlib.metadata.Distribution) -> str:
    """The SPDX expression, else the trove classifiers, else the first line of the old field."""

    def values(key: str) -> list[str]:
        return distribution.metadata.get_all(key) or []

    if values("License-Expression"):
        return values("License-Expression")[0]
    classifiers = [c for c in values("Classifier") if c.startswith("License ::")]
    names = [c.split(" :: ")[-1] for c in classifiers if not c.endswith("OSI Approved")]
    if names:
        return "; ".join(names)
    return next(iter(values("License")), "").strip().split("\n")[0][:100]


def read_packages(packages: list[Package], max_bytes: int, workers: int) -> None:
    """Fill `sources`, in order, until max_bytes are read; near-duplicates are still in it."""
    total = 0
    jobs = [(package.root, path) for package in packages for path in package.paths]
    owners = [package for package in packages for _ in package.paths]
    for package, (path, result) in zip(owners, _read_all(jobs, workers), strict=True):
        if isinstance(result, str):
            package.dropped[result] = package.dropped.get(result, 0) + 1
        elif total < max_bytes:
            text, digest, lines = result
            package.sources.append(Source(path, text, digest, lines))
            total += len(text)


def _read_all(
    jobs: list[tuple[Path, str]], workers: int
) -> Iterator[tuple[str, str | tuple[str, str, UInt64]]]:
    if workers < 2:
        yield from map(_read, jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:  # PyTorch may have threads by now
        yield from pool.map(_read, jobs, chunksize=64)


def _read(job: tuple[Path, str]) -> tuple[str, str | tuple[str, str, UInt64]]:
    """Text, hash and line hashes of a file, or why it is left out."""
    root, path = job
    if VENDORED.search(path):
        return path, "vendored"
    try:
        data = (root / path).read_bytes()
    except OSError:
        return path, "unreadable"
    if not 200 <= len(data) <= MAX_FILE_BYTES:
        return path, "too short or too long"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return path, "not UTF-8"
    text = text.replace("\r\n", "\n")
    lines = [line.strip() for line in text.split("\n")]
    if "\0" in text or max(map(len, lines)) > MAX_LINE_CHARS:
        return path, "data in lines"
    hashes = {_hash(line) for line in lines if len(line) >= MIN_LINE_CHARS}
    return path, (text, hashlib.sha256(data).hexdigest(), np.array(sorted(hashes), dtype=np.uint64))


def _hash(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little")


def choose_held_out(packages: list[Package], share: float, seed: int) -> list[Package]:
    """Whole packages, by the hash of their names, until they hold the share of the text."""
    total = sum(package.num_bytes for package in packages)
    least, most = HELD_OUT_BYTES
    chosen: list[Package] = []
    held = 0
    for package in sorted(packages, key=lambda p: hashlib.sha256(f"{seed}:{p.name}".encode()).digest()):
        size = package.num_bytes
        if held < share * total and package.name != "cpython" and least <= size <= min(most, total / 10):
            chosen.append(package)
            held += size
    return chosen


def drop_near_duplicates(packages: Iterable[Package]) -> None:
    """Drop files most of whose longer lines stood in an earlier file; held-out packages come first.

    One rule for copies, versions of one file, and training files that would give held-out text away.
    """
    seen: set[int] = set()
    for package in packages:
        kept = []
        for source in package.sources:
            lines = source.lines.tolist()
            new = [line for line in lines if line not in seen]
            if lines and len(new) < MIN_NEW_SHARE * len(lines):
                package.dropped["near-duplicate"] = package.dropped.get("near-duplicate", 0) + 1
                continue
            seen.update(new)
            kept.append(source)
        package.sources = kept

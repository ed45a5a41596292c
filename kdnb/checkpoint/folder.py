"""All tensors of a checkpoint folder, by name."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kdnb.checkpoint.mapped_file import Entry, MappedFile
from kdnb.checkpoint.stored import StoredTensor
from kdnb.config_reader import is_folder, read_json_object
from kdnb.errors import CheckpointError, ConfigError

SINGLE = "model.safetensors"  # as transformers: it goes before an index, and both before other files
INDEX = "model.safetensors.index.json"
NAMED_AT_MOST = 20  # tensors of each kind that an error lists
QUANTIZED = (".weight_packed", ".weight_scale", ".weight_shape", ".weight_scale_inv")


@dataclass(frozen=True)
class Shard:
    """Which part of the tensors a process reads; today the whole, 0 of 1."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if (self.rank, self.world) != (0, 1):
            raise ConfigError(
                f"shard {self.rank} of {self.world} was asked for; kdnb runs on one rank, 0 of 1."
            )


class TensorFolder(Mapping[str, StoredTensor]):
    """The tensors of a folder: one *.safetensors file, or shards with an index.

    Args:
        path: The folder.
        prefix: Stands before the names on disk and is taken off.
        shard: The part to read.

    Raises:
        CheckpointError: if files are missing or damaged, or the index does not fit them.
    """

    def __init__(self, path: str | os.PathLike[str], prefix: str = "", shard: Shard = Shard()) -> None:
        self.path = Path(path)
        self.shard = shard
        self._files = _open_files(self.path)
        self._tensors = _group(_entries(self._files), prefix)

    def __repr__(self) -> str:
        return f"TensorFolder({self.path.name!r}, {len(self)} tensors, {self.mapped_bytes} bytes)"

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def mapped_bytes(self) -> int:
        """Size of the files."""
        return sum(file.num_bytes for file in self._files)

    def check(self, expected: Mapping[str, tuple[int, ...]], is_ignored: Callable[[str], bool]) -> None:
        """Compare names and shapes with what a model needs.

        Args:
            expected: Shape of every tensor.
            is_ignored: Names that may be there without being expected.

        Raises:
            CheckpointError: one error that lists all that is missing, extra, misshapen, or stored in a
                way that cannot be read.
        """
        missing = [f"{name} {list(expected[name])}" for name in expected if name not in self]
        # an empty tensor changes nothing: transformers writes some for n_shared_experts 0
        extra = [n for n in self if n not in expected and self[n].size and not is_ignored(n)]
        misshapen = [
            f"{name} is {list(self[name].shape)}, expected {list(shape)}"
            for name, shape in expected.items()
            if name in self and tuple(self[name].shape) != tuple(shape)
        ]
        unusable = [
            f"{name} is {self[name].dtype_name} without a scale"
            for name in expected
            if name in self and not self[name].is_usable
        ]
        kinds = {"missing": missing, "extra": extra, "misshapen": misshapen, "unreadable": unusable}
        found = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds.items() if names]
        if found:
            raise CheckpointError(
                f"{str(self.path)!r} does not hold the tensors its config asks for; " + "; ".join(found) + "."
            )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_AT_MOST])
    more = len(names) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _open_files(path: Path) -> list[MappedFile]:
    if not is_folder(path):
        raise CheckpointError(f"{str(path)!r} is not a folder.")
    if (path / SINGLE).exists():
        return [MappedFile(path / SINGLE)]
    if (path / INDEX).exists():
        return _open_shards(path)
    try:
        found = sorted(path.glob("*.safetensors"))
        others = [p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf")]
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    if not found:
        hint = f" but {', '.join(sorted(others)[:3])}" if others else ""
        raise CheckpointError(f"{str(path)!r} holds no *.safetensors file{hint}; kdnb reads safetensors.")
    return [MappedFile(file) for file in found]


def _open_shards(path: Path) -> list[MappedFile]:
    try:
        weight_map = read_json_object(path / INDEX).get("weight_map")
    except ConfigError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} in {str(path)!r} has no weight_map object.")
    names = sorted(set(map(str, weight_map.values())))
    absent = [name for name in names if Path(name).name != name or not _is_file(path / name)]
    if absent:
        raise CheckpointError(
            f"{INDEX} names {len(absent)} of {len(names)} shards that are not in {str(path)!r}: "
            f"{_listed(absent)}; fetch them."
        )
    files = {name: MappedFile(path / name) for name in names}
    lost = [f"{tensor} in {name}" for tensor, name in weight_map.items() if tensor not in files[name].entries]
    if lost:
        raise CheckpointError(
            f"{INDEX} names {len(lost)} tensors that their shards do not hold: {_listed(lost)}."
        )
    return list(files.values())


def _entries(files: list[MappedFile]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in file.entries.items():
            if name in entries:
                raise CheckpointError(
                    f"{name} is in both {entries[name].file.path.name} and {file.path.name}."
                )
            entries[name] = entry
    return entries


def _group(entries: dict[str, Entry], prefix: str) -> dict[str, StoredTensor]:
    """Put the parts of quantised weights together, under the weight's own name."""
    grouped: dict[str, dict[str, Entry]] = {}
    for name, entry in entries.items():
        suffix = next((s for s in QUANTIZED if name.endswith(s)), None)
        whole = name.removesuffix(suffix) + ".weight" if suffix else name
        part = suffix.removeprefix(".") if suffix else "weight"
        grouped.setdefault(whole, {})[part] = entry
    tensors = {}
    for name, parts in grouped.items():
        if "weight" not in parts and "weight_packed" not in parts:
            raise CheckpointError(f"{name} is missing but its {' and '.join(sorted(parts))} is there.")
        short = name.removeprefix(prefix)
        tensors[short] = StoredTensor(short, parts)
    return tensors

"""One safetensors file, mapped into memory."""

import json
import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kdnb.arrays import HostArray
from kdnb.errors import CheckpointError

DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "U8": np.uint8,
    "I8": np.int8,
}
ITEM_BYTES = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()}
FP_NAMES = ("F32", "BF16", "F16", "F64")
MAX_NUMBER = 1 << 62  # of a size or offset
MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, eq=False)
class Entry:
    """Where one tensor lies: dtype name, shape, and bytes [start, stop) of the file."""

    file: "MappedFile"
    dtype_name: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def array(self) -> HostArray:
        """The tensor as a read-only view of the file."""
        return self.file.view(self)

    def release(self) -> None:
        """Let go of the tensor's resident pages; they are read again when needed."""
        self.file.release(self.start, self.stop)


class MappedFile:
    """A safetensors file. Opening reads its header and maps the rest; no tensor is read.

    The header is checked here and not by the safetensors package, because that one copies tensors out
    and keeps no offsets: neither zero-copy views nor letting go of pages would be possible.

    Args:
        path: The file.

    Raises:
        CheckpointError: if it is missing, truncated, or its header is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                first = file.read(8)
                if len(first) < 8:
                    raise self._error(f"is {size} bytes long; a safetensors file has at least 8")
                length = int.from_bytes(first, "little")
                if length > MAX_HEADER_BYTES or 8 + length > size:
                    raise self._error(
                        f"says its header has {length} bytes but the file has {size}; it is truncated "
                        "or no safetensors file"
                    )
                header = file.read(length)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror or error}") from None
        self.num_bytes = size
        self.entries = self._parse(header, 8 + length)

    def __repr__(self) -> str:
        return f"MappedFile({self.path.name!r}, {len(self.entries)} tensors, {self.num_bytes} bytes)"

    def view(self, entry: Entry) -> HostArray:
        """A read-only array over the mapped bytes of one tensor."""
        dtype = np.dtype(DTYPES[entry.dtype_name])
        count = (entry.stop - entry.start) // dtype.itemsize
        flat = np.frombuffer(self._map, dtype=dtype, count=count, offset=entry.start)
        return flat.reshape(entry.shape)

    def release(self, start: int, stop: int) -> None:
        """Drop the resident pages that lie wholly inside [start, stop)."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return  # Windows: the system drops pages by itself
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _parse(self, header: bytes, data_start: int) -> dict[str, Entry]:
        try:
            parsed = json.loads(header, object_pairs_hook=self._no_duplicates)
        except (ValueError, RecursionError) as error:
            raise self._error(f"has a damaged header ({error})") from None
        if not isinstance(parsed, dict):
            raise self._error("has a header that is no JSON object")
        parsed.pop("__metadata__", None)
        entries = {name: self._entry(name, facts, data_start) for name, facts in parsed.items()}
        end = data_start
        for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
            if entry.start < end:
                raise self._error(f"has overlapping tensors at {name}")
            end = entry.stop
        return entries

    def _entry(self, name: str, facts: Any, data_start: int) -> Entry:
        try:
            dtype_name, shape = facts["dtype"], tuple(facts["shape"])
            begin, end = facts["data_offsets"]
            numbers = (*shape, begin, end)
            whole = all(type(n) is int and 0 <= n < MAX_NUMBER for n in numbers)
            if not whole or end < begin or not isinstance(dtype_name, str):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise self._error(f"has a damaged header entry for {name}") from None
        if dtype_name not in DTYPES:
            raise self._error(f"stores {name} as {dtype_name}; kdnb reads {', '.join(DTYPES)}")
        expected = math.prod(shape) * ITEM_BYTES[dtype_name]
        if end - begin != expected:
            raise self._error(
                f"gives {name} {end - begin} bytes but shape {list(shape)} of {dtype_name} needs {expected}"
            )
        if data_start + end > self.num_bytes:
            raise self._error(
                f"ends at byte {self.num_bytes} but {name} reaches to byte {data_start + end}; "
                "it is truncated, fetch it again"
            )
        return Entry(self, dtype_name, shape, data_start + begin, data_start + end)

    def _no_duplicates(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise self._error(f"names {twice} twice in its header")
        return found

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(f"{str(self.path)!r} {what}.")

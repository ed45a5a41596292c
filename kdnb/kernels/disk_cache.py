"""A cache of built files: safe for processes that start together, and for entries that were cut short."""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

DIGEST_BYTES = 32


class DiskCache:
    """Built bytes and what is known about them, one file per key.

    An entry is written beside its place and moved there whole. It ends with a digest of itself: an entry
    that does not match is deleted and built again. A folder that cannot be written costs a warning and
    the time to build, nothing else.

    Args:
        folder: Where entries live; None is KDNB_CACHE_DIR or the user's cache directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder
        self._warned = False

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r})"

    def get(
        self, key: str, suffix: str, build: Callable[[], tuple[bytes, dict[str, Any]]]
    ) -> tuple[bytes, dict[str, Any]]:
        """An entry's bytes and notes; `build` makes them where the entry is missing or damaged."""
        path = self.folder / (key + suffix)
        entry = _read(path)
        if entry is None:
            payload, notes = build()
            self._write(path, payload, notes)
            entry = payload, notes
        return entry

    def path(
        self, key: str, suffix: str, build: Callable[[], tuple[bytes, dict[str, Any]]]
    ) -> tuple[Path, dict[str, Any]]:
        """As `get`, but the file, for a loader that wants one; it ends with the notes and the digest."""
        path = self.folder / (key + suffix)
        payload, notes = self.get(key, suffix, build)
        if _read(path) is None:  # the folder cannot be written
            path = Path(tempfile.mkdtemp(prefix="kdnb-")) / path.name
            path.write_bytes(payload)
        return path, notes

    def _write(self, path: Path, payload: bytes, notes: dict[str, Any]) -> None:
        text = json.dumps(notes).encode()
        body = payload + text + len(text).to_bytes(8, "little")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".building-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(body + hashlib.sha256(body).digest())
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"built kernels cannot be kept in {self.folder} ({error.strerror}); they are built again "
                    "in every process. Set KDNB_CACHE_DIR to a folder that can be written.",
                    stacklevel=2,
                )


def default_folder() -> Path:
    """KDNB_CACHE_DIR, or the user's cache directory."""
    asked = os.environ.get("KDNB_CACHE_DIR")
    return Path(asked).expanduser() if asked else Path(platformdirs.user_cache_dir("kdnb")) / "kernels"


def _read(path: Path) -> tuple[bytes, dict[str, Any]] | None:
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    body, digest = whole[:-DIGEST_BYTES], whole[-DIGEST_BYTES:]
    if len(body) < 8 or hashlib.sha256(body).digest() != digest:
        with suppress(OSError):  # what cannot be removed cannot be replaced either
            path.unlink()
        return None
    text_at = len(body) - 8 - int.from_bytes(body[-8:], "little")
    notes: dict[str, Any] = json.loads(body[text_at:-8])
    return body[:text_at], notes

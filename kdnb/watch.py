"""Seeing and changing the values inside a forward, by name."""

import difflib
from collections.abc import Callable, Iterable

import numpy as np

from kdnb.arrays import HostArray
from kdnb.backends.base import Array, Backend
from kdnb.errors import ConfigError, ShapeError

Edit = Callable[[str, HostArray], HostArray | None]


class Watch:
    """Records the taps asked for and passes every tapped value through `edit`.

    Args:
        backend: Where the values live.
        taps: Names to record.
        known: All names there are.
        edit: edit(name, host array) -> changed array, or None (or the same object) to leave it.

    Raises:
        ConfigError: if a tap has no such name.
    """

    def __init__(
        self, backend: Backend, taps: Iterable[str], known: frozenset[str], edit: Edit | None
    ) -> None:
        self.recorded: dict[str, Array] = {}
        self._backend = backend
        self._taps = frozenset(taps)
        self._edit = edit
        for name in sorted(self._taps - known):
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "see target.tap_names."
            raise ConfigError(f'taps has "{name}", which this target does not compute; {hint}')

    def __call__(self, name: str, x: Array) -> Array:
        """Return x, or what `edit` makes of it; the same object means unchanged."""
        if self._edit is not None:
            x = self._edited(name, x)
        if name in self._taps:
            self.recorded[name] = x
        return x

    def _edited(self, name: str, x: Array) -> Array:
        assert self._edit is not None
        before = self._backend.download(x)
        after = self._edit(name, before.copy())
        if after is None:
            return x
        after = np.asarray(after)
        if after.shape != before.shape:
            raise ShapeError(
                f'edit returned shape {list(after.shape)} for "{name}" but the forward has '
                f"{list(before.shape)} there; return an array of the same shape."
            )
        if np.array_equal(after, before, equal_nan=np.issubdtype(before.dtype, np.floating)):
            return x
        return self._backend.upload(after.astype(before.dtype))

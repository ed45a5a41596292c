"""Editing kernel sources for tests of the tests."""

from typing import Literal

from kdnb.kernels.source import CUDA_SRC

Order = Literal["forward", "reversed", "shuffled"]


def edited(name: str, old: str, new: str) -> dict[str, str]:
    """A kernel's source with one piece of text changed, as EmulatedDevice's `bodies`."""
    text = (CUDA_SRC / f"{name}.cu").read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{old!r} occurs {text.count(old)} times in {name}.cu, expected once.")
    return {name: text.replace(old, new)}

"""Drafters: who proposes what comes next."""

from pathlib import Path
from typing import TYPE_CHECKING

from kdnb.drafters.base import Drafter
from kdnb.drafters.dflash import DFlash
from kdnb.drafters.ngram import NGram
from kdnb.drafters.oracle import NoisyOracle
from kdnb.drafters.replay import Replay
from kdnb.errors import ConfigError
from kdnb.shipped import SHIPPED, shipped_folder

if TYPE_CHECKING:
    from kdnb.model import Target

__all__ = ["DFlash", "Drafter", "NGram", "NoisyOracle", "Replay", "load_drafter"]


def load_drafter(path: str | Path, target: "Target") -> Drafter:
    """Open a drafter for a target.

    Args:
        path: A DFlash folder (z-lab's format), the name of a shipped one ("tiny", "golden"), or "ngram".
        target: The target it will draft for.

    Returns:
        Drafter.

    Raises:
        ConfigError: if the folder or name does not exist, or is no DFlash drafter.
        CheckpointError: if its tensors are missing or misshapen.
        DrafterError: if it was made for another target.
    """
    name = str(path)
    if name == "ngram":
        return NGram()
    if name in SHIPPED:
        return DFlash.load(shipped_folder(name, "drafter"), target, name)
    folder = Path(path)
    if not folder.exists():
        names = ", ".join(sorted([*SHIPPED, "ngram"]))
        raise ConfigError(f"{name!r} does not exist; pass a DFlash folder or one of {names}.")
    return DFlash.load(folder, target)

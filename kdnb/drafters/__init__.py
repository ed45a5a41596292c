"""Drafters: who proposes."""

from kdnb.drafters.base import Drafter
from kdnb.drafters.dflash import DFlash
from pathlib import Path
from kdnb.shipped import SHIPPED, shipped_folder
def load_drafter(path, target):
    name=str(path)
    folder = shipped_folder(name, "drafter") if name in SHIPPED else Path(path)
    return DFlash.load(folder, target, name if name in SHIPPED else None)

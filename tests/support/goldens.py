"""Golden outputs of independent code, copied into tests/data."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

DATA = Path(__file__).parents[1] / "data"
TARGETS = sorted(path.name for path in (DATA / "targets").iterdir())


@dataclass(frozen=True)
class Golden:
    """One golden case: its folder, JSON facts and arrays."""

    folder: Path
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def load(cls, folder: Path) -> "Golden":
        facts = json.loads((folder / "golden.json").read_text())
        return cls(folder, facts, load_file(folder / "golden.safetensors"))


def worst(ours: np.ndarray, golden: np.ndarray) -> float:
    """Largest absolute difference, after checking that the shapes agree."""
    assert ours.shape == golden.shape, f"shape {ours.shape} but the golden has {golden.shape}"
    return float(np.abs(ours.astype(np.float64) - golden.astype(np.float64)).max())

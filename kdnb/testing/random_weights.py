"""Models of any shape with random weights: to measure and to test without a checkpoint."""

import math
from collections.abc import Iterator, Mapping
from zlib import crc32

import ml_dtypes
import numpy as np

from kdnb.arrays import Floats, HostArray
from kdnb.backends import Backend
from kdnb.checkpoint import StoredTensor, expected_tensors
from kdnb.config import TargetConfig
from kdnb.drafter_config import DFlashConfig
from kdnb.drafters.dflash import DFlash
from kdnb.drafters.dflash import expected_tensors as drafter_tensors
from kdnb.layers import TargetWeights
from kdnb.model import Target

BLOCK = (1 << 22) + 3  # numbers drawn once; every tensor is a run of them from a place of its own


class RandomTensor(StoredTensor):
    """A bfloat16 weight that is made when it is read: matrices of variance 1 / columns, vectors near 1."""

    def __init__(self, name: str, shape: tuple[int, ...], source: "RandomTensors") -> None:
        self.name, self.shape, self._source = name, shape, source
        self.kind = "plain"
        self.size = math.prod(shape)

    @property
    def dtype_name(self) -> str:
        """As a checkpoint would say."""
        return "BF16"

    @property
    def stored_bytes(self) -> int:
        """As a checkpoint would hold."""
        return 2 * self.size

    def parts(self) -> dict[str, HostArray]:
        """The values, as if they were in a file."""
        return {"weight": self.read(np.dtype(ml_dtypes.bfloat16))}

    def read(self, dtype: "np.dtype[np.floating] | type[np.floating]" = np.float32) -> Floats:
        """The whole weight."""
        return self._source.values(self.name, self.shape, np.dtype(dtype))

    def read_rows(self, rows: HostArray) -> Floats:
        """Some rows, as float32."""
        chosen: Floats = self.read(np.float32)[rows]
        return chosen

    def release(self) -> None:
        """Nothing is mapped."""


class RandomTensors(Mapping[str, StoredTensor]):
    """Random weights by name.

    Args:
        shapes: Name and shape of each.
        seed: Same seed, same weights.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> None:
        self._shapes = dict(shapes)
        self._block = np.random.default_rng(seed).standard_normal(BLOCK, dtype=np.float32)
        self._scaled: dict[tuple[float, np.dtype[np.floating]], Floats] = {}

    def __getitem__(self, name: str) -> StoredTensor:
        return RandomTensor(name, self._shapes[name], self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def values(self, name: str, shape: tuple[int, ...], dtype: "np.dtype[np.floating]") -> Floats:  # type: ignore[override]
        """The numbers of one tensor; bfloat16 values whatever the dtype."""
        first = crc32(name.encode()) % BLOCK
        if len(shape) == 1:
            near = self._run(first, shape, 0.02, np.dtype(np.float32))
            return (near if "bias" in name else near + 1).astype(dtype)
        scale = 1.0 if "embed_tokens" in name else shape[1] ** -0.5
        return self._run(first, shape, scale, dtype)

    def _run(
        self, first: int, shape: tuple[int, ...], scale: float, dtype: "np.dtype[np.floating]"
    ) -> Floats:
        key = (scale, dtype)
        if key not in self._scaled:
            narrow = (self._block * np.float32(scale)).astype(ml_dtypes.bfloat16)
            self._scaled[key] = narrow.astype(dtype)
        block, size = self._scaled[key], math.prod(shape)
        out = np.empty(size, dtype=dtype)
        for start in range(-first, size, BLOCK):  # block after block, the first one from its middle
            low, high = max(start, 0), min(start + BLOCK, size)
            out[low:high] = block[low - start : high - start]
        return out.reshape(shape)


def random_target(config: TargetConfig, backend: Backend, seed: int = 0) -> Target:
    """A target of a config's shape with random weights."""
    tensors = RandomTensors(expected_tensors(config), seed)
    return Target(
        config, TargetWeights.load(tensors, config, backend), backend, name="random", tensors=tensors
    )


def random_drafter(config: DFlashConfig, target: Target, seed: int = 1) -> DFlash:
    """A DFlash drafter of a config's shape with random weights: it is hardly ever right."""
    return DFlash(config, RandomTensors(drafter_tensors(config), seed), target, name="random")

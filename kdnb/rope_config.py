"""Rotary embedding settings, from either spelling of a Hugging Face config."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from kdnb.arrays import Float32
from kdnb.config_reader import ConfigReader
from kdnb.errors import ConfigError

ROPE_TYPES = ("default", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles; the names are the config's.

    Args:
        rope_theta: Base of the frequencies.
        rope_type: "default" or "yarn".
        factor: YaRN's context extension.
        beta_fast: Rotations above which a frequency is kept.
        beta_slow: Rotations below which a frequency is divided by `factor`.
        mscale: Amplitude key of YaRN, 0 if absent.
        mscale_all_dim: Amplitude key that also scales the softmax, 0 if absent.
        original_max_position_embeddings: Context the model was first trained for.
        attention_factor: Factor on cos and sin; None derives it from the mscales.
        truncate: Whether the blend's borders are rounded to whole pairs.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    original_max_position_embeddings: int = 4096
    attention_factor: float | None = None
    truncate: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "RopeConfig":
        """Read `rope_parameters`, or else `rope_theta` and `rope_scaling`.

        Raises:
            ConfigError: if the rope type is unknown or a value has the wrong type.
        """
        if config.get("rope_parameters") and config.get("rope_scaling"):
            _check_spellings(config)
        where = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
        scaling = config.get(where) or {}
        if not isinstance(scaling, Mapping):
            raise ConfigError(f"{where} is {scaling!r}; it must be an object or null.")
        read = ConfigReader(scaling, where)
        top = ConfigReader(config, "config.json")
        rope_type = scaling.get("rope_type", scaling.get("type", "default"))
        if rope_type not in ROPE_TYPES:
            raise ConfigError(
                f'rope type "{rope_type}" is not one kdnb computes; it knows {", ".join(ROPE_TYPES)}.'
            )
        theta = read.number("rope_theta", None, above=1) or top.number("rope_theta", 10000.0, above=1)
        if rope_type == "default":
            return cls(rope_theta=theta)
        return cls(
            rope_theta=theta,
            rope_type=rope_type,
            factor=read.number("factor", above=0),
            beta_fast=read.number("beta_fast", None, above=0) or 32.0,
            beta_slow=read.number("beta_slow", None, above=0) or 1.0,
            mscale=read.number("mscale", None) or 0.0,
            mscale_all_dim=read.number("mscale_all_dim", None) or 0.0,
            original_max_position_embeddings=read.integer(
                "original_max_position_embeddings",
                top.integer("original_max_position_embeddings", None, 1)
                or top.integer("max_position_embeddings", 4096, 1),
                1,
            ),
            attention_factor=read.number("attention_factor", None),
            truncate=read.boolean("truncate", True),
        )

    def blend_range(self, dim: int) -> tuple[float, float]:
        """Frequency pairs between which YaRN goes from kept to divided."""

        def pair_of(rotations: float) -> float:
            ratio = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return dim * math.log(ratio) / (2 * math.log(self.rope_theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        return low, high + 0.001 if low == high else high

    def inv_freq(self, dim: int) -> Float32:
        """Radians per position of each pair: float32 [dim / 2].

        Source: Peng et al. 2023 (arXiv:2309.00071) section 3.2, in float32 as checkpoints' own code.
        """
        return _inv_freq(self, dim)

    @property
    def attention_scaling(self) -> float:
        """Factor on cos and sin; 1.0 for every Kimi and DeepSeek checkpoint."""
        if self.rope_type == "default":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _amplitude(self.factor, self.mscale) / _amplitude(self.factor, self.mscale_all_dim)
        return _amplitude(self.factor, 1.0)

    @property
    def softmax_mscale(self) -> float:
        """M of the softmax scale (qk_head_dim ** -0.5) * m ** 2."""
        if self.rope_type == "default" or not self.mscale_all_dim:
            return 1.0
        return _amplitude(self.factor, self.mscale_all_dim)


def _check_spellings(config: Mapping[str, Any]) -> None:
    """Refuse a config whose two spellings disagree: programs differ in which one they read."""
    theta = config.get("rope_theta")
    new = RopeConfig.from_dict({**config, "rope_scaling": None})
    old = RopeConfig.from_dict({**config, "rope_parameters": None, "rope_theta": theta or new.rope_theta})
    if replace(old, rope_theta=new.rope_theta) != new:
        raise ConfigError("config.json: rope_parameters and rope_scaling disagree; leave one of them out.")


def _amplitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


@lru_cache(maxsize=64)
def _inv_freq(config: RopeConfig, dim: int) -> Float32:
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    periods = np.float32(config.rope_theta) ** exponents
    if config.rope_type == "default":
        plain: Float32 = (np.float32(1.0) / periods).astype(np.float32)
        return plain
    low, high = config.blend_range(dim)
    pairs = np.arange(dim // 2, dtype=np.float32)
    ramp = np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
    divided = np.float32(1.0) / (np.float32(config.factor) * periods)
    kept = np.float32(1.0) / periods
    blended: Float32 = (ramp * divided + (1 - ramp) * kept).astype(np.float32)
    return blended

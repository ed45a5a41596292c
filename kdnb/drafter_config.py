"""A DFlash drafter's config, as z-lab writes it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdnb.config_reader import ConfigReader, is_folder, read_json_object
from kdnb.errors import ConfigError
from kdnb.rope_config import RopeConfig

LAYER_TYPES = ("full_attention", "sliding_attention")
OTHER_ARCHITECTURES = {
    "projector_type": "another projector",
    "conv_kernel_size": "DFlash2's convolutions",
    "conv_group_size": "DFlash2's convolutions",
    "selector_rank": "DFlash2's selector",
    "selector_top_k": "DFlash2's selector",
    "draft_vocab_size": "a reduced draft vocabulary",
}


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes and rules of a DFlash drafter; the names are its config's.

    Args:
        block_size: Rows of a block: the root and block_size - 1 mask tokens.
        mask_token_id: What stands where a token is to be drafted.
        target_layer_ids: Target layers (from 0) whose output it reads.
        layer_types: "full_attention" or "sliding_attention" per layer.
        sliding_window: Distance from which a sliding layer's keys are hidden, or None.
    """

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    layer_types: tuple[str, ...]
    sliding_window: int | None
    vocab_size: int

    @classmethod
    def from_folder(cls, folder: Path) -> "DFlashConfig":
        """Read config.json; ConfigError as `from_dict`, or if there is none."""
        if not is_folder(folder):
            what = "is not a folder" if os.path.lexists(folder) else "does not exist"
            raise ConfigError(f"{str(folder)!r} {what}; pass a DFlash folder or a drafter's name.")
        return cls.from_dict(read_json_object(folder / "config.json"))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "DFlashConfig":
        """Read a drafter's config.

        Raises:
            ConfigError: if it is no DFlash drafter, or a key is missing or cannot be used.
        """
        inner = config.get("dflash_config")
        if not isinstance(inner, Mapping):
            names = config.get("architectures") or config.get("model_type")
            raise ConfigError(
                f"config.json has no dflash_config: {names} is not a DFlash drafter in z-lab's format."
            )
        _refuse_others(config, inner)
        read, own = ConfigReader(config, "config.json"), ConfigReader(inner, "dflash_config")
        num_hidden_layers = read.integer("num_hidden_layers", least=1)
        num_target_layers = read.integer("num_target_layers", least=1)
        heads = read.integer("num_attention_heads", least=1)
        kv_heads = read.integer("num_key_value_heads", heads, 1)
        if heads % kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads is {heads}, which num_key_value_heads {kv_heads} "
                "does not divide."
            )
        hidden_size = read.integer("hidden_size", least=1)
        head_dim = read.integer("head_dim", hidden_size // heads, 2)
        if head_dim % 2:
            raise ConfigError(f"config.json: head_dim is {head_dim}; it must be even.")
        block_size = own.integer("block_size", None) or read.integer("block_size")
        if block_size < 2:
            raise ConfigError(
                f"config.json: block_size is {block_size}; a block holds the root and at least one "
                "mask token, so 2 or more."
            )
        window = read.integer("sliding_window", None, 1)
        layer_types = _layer_types(config, num_hidden_layers, window)
        layer_ids = own.integers("target_layer_ids") or own.integers("layer_ids")
        read.choice("hidden_act", ("silu",), "silu")
        return cls(
            block_size=block_size,
            mask_token_id=own.integer("mask_token_id"),
            target_layer_ids=layer_ids or default_layer_ids(num_target_layers, num_hidden_layers),
            num_target_layers=num_target_layers,
            num_hidden_layers=num_hidden_layers,
            hidden_size=hidden_size,
            intermediate_size=read.integer("intermediate_size", least=1),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=read.number("rms_norm_eps", above=0),
            rope=RopeConfig.from_dict(config),
            layer_types=layer_types,
            sliding_window=window,
            vocab_size=read.integer("vocab_size", least=1),
        )


def default_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The layers z-lab taps where a config names none: spread from layer 1 to 3 before the end."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_draft_layers - 1)
    return tuple(round(1 + index * step) for index in range(num_draft_layers))


def _layer_types(config: Mapping[str, Any], num_hidden_layers: int, window: int | None) -> tuple[str, ...]:
    types = tuple(config.get("layer_types") or ("full_attention",) * num_hidden_layers)
    if len(types) != num_hidden_layers:
        raise ConfigError(
            f"config.json: layer_types names {len(types)} layers but num_hidden_layers is "
            f"{num_hidden_layers}."
        )
    for name in types:
        if name not in LAYER_TYPES:
            raise ConfigError(
                f"config.json: layer_types has {name!r}; kdnb computes {', '.join(LAYER_TYPES)}."
            )
    if "sliding_attention" in types and window is None:
        raise ConfigError("config.json: layer_types has sliding_attention but no sliding_window.")
    return types


def _refuse_others(config: Mapping[str, Any], inner: Mapping[str, Any]) -> None:
    for key, what in OTHER_ARCHITECTURES.items():
        if inner.get(key) is not None or config.get(key) is not None:
            raise ConfigError(f"{key} asks for {what}, which is not the DFlash that kdnb computes.")
    for key, expected in (("use_swa", False), ("sample_from_anchor", False), ("use_aux_hidden_state", True)):
        if inner.get(key, expected) != expected:
            raise ConfigError(
                f"dflash_config: {key} is {inner[key]!r}, which another exporter's drafters use and kdnb "
                "does not compute; sliding windows are read from layer_types and sliding_window."
            )
    if inner.get("causal"):
        raise ConfigError("dflash_config: causal is true; DFlash's block is not causal.")
    mode = inner.get("attention_mode", "gqa")
    if mode not in ("gqa", "mha"):
        raise ConfigError(f'dflash_config: attention_mode is "{mode}"; kdnb computes gqa and mha.')
    if config.get("attention_bias"):
        raise ConfigError("config.json: attention_bias is true; DFlash's projections have no bias.")

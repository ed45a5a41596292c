"""Trained models as checkpoint folders, and back."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from kdnb.checkpoint import TensorFolder
from kdnb.config import TargetConfig
from kdnb.drafter_config import DFlashConfig
from kdnb.training.drafter import DrafterModel
from kdnb.training.model import TargetModel
from kdnb.training.quantize import pack, quantize
from kdnb.training.recipe import EOS_ID, PAD_ID, SPECIALS

QUANTIZATION: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}


def target_tensors(model: TargetModel, *, int4: bool = True) -> dict[str, Tensor]:
    """The target's tensors by their names on disk.

    Args:
        model: The target.
        int4: Pack the routed experts; otherwise they are bfloat16 like the rest.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        name, value = f"model.{name}", value.detach().float().cpu()
        if name.endswith("e_score_correction_bias"):
            tensors[name] = value  # float32: it decides near ties
        elif ".experts." in name:
            for part, weight in _expert_parts(name, value):
                tensors.update(_packed(part, weight) if int4 else {f"{part}.weight": weight.bfloat16()})
        else:
            tensors[name] = value.bfloat16()
    return tensors


def _expert_parts(name: str, stacked: Tensor) -> list[tuple[str, Tensor]]:
    """Names (without .weight) and matrices of the experts in a stack."""
    prefix, part = name.rsplit(".", 1)
    parts = []
    for index, weight in enumerate(stacked):
        at = f"{prefix}.{index}."
        if part == "down_proj":
            parts.append((at + "down_proj", weight))
        else:
            gate, up = weight.chunk(2)
            parts += [(at + "gate_proj", gate), (at + "up_proj", up)]
    return parts


def _packed(name: str, weight: Tensor) -> dict[str, Tensor]:
    q, scale = quantize(weight)
    return {
        f"{name}.weight_packed": pack(q),
        f"{name}.weight_scale": scale.bfloat16(),
        f"{name}.weight_shape": torch.tensor(weight.shape, dtype=torch.int32),
    }


def export_target(
    model: TargetModel, config: dict[str, Any], tokenizer: Path | None, folder: Path, *, int4: bool = True
) -> None:
    """Write a Hugging Face folder.

    Args:
        model: The target.
        config: Its config.json; quantization_config is added.
        tokenizer: A tokenizer.json to copy, or None.
        folder: Made if it does not exist.
        int4: See target_tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config | ({"quantization_config": QUANTIZATION} if int4 else {}))
    generation = {"bos_token_id": EOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    _write_json(folder / "generation_config.json", generation)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
        names = dict(zip(("eos_token", "pad_token", "mask_token"), SPECIALS, strict=True))
        _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"} | names)
    _save(target_tensors(model, int4=int4), folder)


def export_drafter(model: DrafterModel, config: dict[str, Any], folder: Path) -> None:
    """Write a DFlash folder in z-lab's format, bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _save({name: value.detach().cpu().bfloat16() for name, value in model.state_dict().items()}, folder)


def load_target_model(folder: Path) -> TargetModel:
    """The target as a folder holds it, INT4 dequantized: what a drafter must be trained on."""
    config = TargetConfig.from_folder(folder)
    tensors = TensorFolder(folder)
    model = TargetModel(config)

    def read(name: str) -> Tensor:
        return torch.from_numpy(tensors[name].read().copy())

    state = {}
    for name, value in model.state_dict().items():
        if ".experts." not in name:
            state[name] = read(f"model.{name}")
            continue
        prefix, part = f"model.{name}".rsplit(".", 1)
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
        state[name] = torch.stack(
            [torch.cat([read(f"{prefix}.{e}.{p}.weight") for p in parts]) for e in range(len(value))]
        )
    model.load_state_dict(state)
    return model.eval()


def load_drafter_model(folder: Path) -> DrafterModel:
    """The drafter as a folder holds it."""
    tensors = TensorFolder(folder)
    model = DrafterModel(DFlashConfig.from_folder(folder))
    model.load_state_dict({name: torch.from_numpy(tensors[name].read().copy()) for name in tensors})
    return model.eval()


def folder_bytes(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _save(tensors: dict[str, Tensor], folder: Path) -> None:
    contiguous = {name: value.contiguous().clone() for name, value in tensors.items()}
    path = folder / "model.safetensors"
    save_file(contiguous, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library makes files that only their owner reads


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

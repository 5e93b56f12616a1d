"""LoRA adapters as PEFT writes them, made by hand: one JSON file and one safetensors file in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def lora_pairs(*layers: tuple[str, int, int], rank: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random A (rank, inputs) and B (outputs, rank) by name in the file; layers: name, inputs, outputs."""
    torch.manual_seed(seed)
    pairs = {}
    for name, inputs, outputs in layers:
        pairs[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs) * 0.2
        pairs[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, rank) * 0.2
    return pairs


def save_adapter(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    """Write the folder and return its path; `config` is over what PEFT writes for plain LoRA of rank 4, alpha 8."""
    folder.mkdir(exist_ok=True)
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "use_dora": False, "use_rslora": False}
    (folder / "adapter_config.json").write_text(json.dumps({**plain, "fan_in_fan_out": False, **config}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)

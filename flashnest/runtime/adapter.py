"""Merges a LoRA adapter, a folder as PEFT saves it, into a module's weights: W += scale * B A. Loads no model.

Merged once at load, an adapter costs a step nothing, and the weights' fingerprint, with it `kv_version`, tells tuned
KV from untuned. LoRA is Hu et al. 2021 (arXiv:2106.09685); scale = alpha / r, or alpha / sqrt(r) with `use_rslora`
(Kalajdzievski 2023, arXiv:2312.03732). The `peft` package is not needed. What PEFT can train beyond A and B pairs is
refused, because leaving a part out would serve another model; a pickle (`adapter_model.bin`) can run code, so it is
refused too.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from flashnest.errors import ModelError

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"

_PREFIX: Final = "base_model.model."
_PAIR: Final = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_CHANGES_THE_BASE: Final = ("pissa", "olora", "corda", "loftq")
"""`init_lora_weights` that also change the model's own weights, which the adapter's files do not hold."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What scales a pair: the defaults and, by a pattern of layer names, exceptions."""

    alpha: float
    alphas: dict[str, float]
    square_root: bool

    def scale(self, layer: str, rank: int) -> float:
        patterns = (p for p in self.alphas if re.match(p if p.startswith("^") else rf"(.*\.)?({p})$", layer))
        alpha = self.alphas[name] if (name := next(patterns, None)) is not None else self.alpha
        return alpha / (math.sqrt(rank) if self.square_root else rank)


def merge_adapter(module: Any, folder: str) -> None:
    """Add the adapter in `folder` to `module`'s linear layers, in place; sums are float32, rounded once to its dtype.

    Raises ModelError, before any weight has changed, where the folder is not a LoRA adapter for this module or trained
    more than A and B pairs.
    """
    place = Path(folder).expanduser()
    rules = _rules(place)
    pairs = _pairs(place)
    layers = {name: _layer(module, name, pair, place) for name, pair in pairs.items()}
    with torch.no_grad():
        for name, (a, b) in pairs.items():
            weight = layers[name].weight
            delta = b.float() @ a.float() * rules.scale(name, a.shape[0])
            weight.copy_(weight.float() + delta.to(weight.device))


def _rules(place: Path) -> _Rules:
    try:
        config = json.loads((place / CONFIG_FILE).read_text("utf-8"))
    except OSError:
        _refuse(place, f"there is no {CONFIG_FILE} in it", "Give the folder that PEFT's save_pretrained wrote.")
    except ValueError as error:
        _refuse(place, f"{CONFIG_FILE} is not JSON: {error}")
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        _refuse(place, "its peft_type is not LORA", "Merge it with PEFT and serve the merged model.")
    if reason := _unserved(config):
        _refuse(place, reason, "Merge it with PEFT (merge_and_unload) and serve the merged model.")
    try:
        alphas = {str(key): float(value) for key, value in (config.get("alpha_pattern") or {}).items()}
        return _Rules(float(config["lora_alpha"]), alphas, bool(config.get("use_rslora")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(place, f"{CONFIG_FILE} lacks a number: {error}")


def _unserved(config: dict[str, Any]) -> str:
    """Return what the adapter has beside plain pairs on linear layers, or an empty string."""
    if config.get("use_dora"):
        return "it uses DoRA"
    if config.get("fan_in_fan_out"):
        return "its matrices are transposed (fan_in_fan_out)"
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        return "it trained biases"
    for key in ("modules_to_save", "trainable_token_indices", "layer_replication", "target_parameters"):
        if config.get(key):
            return f"it has {key}"
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_CHANGES_THE_BASE):
        return f"it was started as {start}, which changed the model's own weights too"
    return ""


def _pairs(place: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return (A, B) by the layer's name in the module: A (r, inputs), B (outputs, r)."""
    try:
        tensors = load_file(place / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        pickled = " (adapter_model.bin is a pickle, which can run code)" if list(place.glob("*.bin")) else ""
        _refuse(place, f"{WEIGHTS_FILE} cannot be read{pickled}: {error}", "Save it with safe_serialization=True.")
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        found = _PAIR.fullmatch(key.removeprefix(_PREFIX))
        if found is None or tensor.dim() != 2:
            _refuse(place, f"it holds {key}, which is no A or B of a linear layer")
        sides.setdefault(found["layer"], {})[found["side"]] = tensor
    for layer, pair in sides.items():
        if len(pair) < 2 or pair["A"].shape[0] != pair["B"].shape[1]:
            _refuse(place, f"the A and B of {layer} do not belong together")
    if not sides:
        _refuse(place, f"{WEIGHTS_FILE} is empty")
    return {layer: (pair["A"], pair["B"]) for layer, pair in sides.items()}


def _layer(module: Any, name: str, pair: tuple[torch.Tensor, torch.Tensor], place: Path) -> torch.nn.Linear:
    try:
        layer = module.get_submodule(name)
    except AttributeError:
        layer = None
    if not isinstance(layer, torch.nn.Linear):
        _refuse(place, f"the model has no linear layer {name}", "Use the model that it was trained on.")
    if tuple(layer.weight.shape) != (pair[1].shape[0], pair[0].shape[1]):
        want, have = tuple(layer.weight.shape), (pair[1].shape[0], pair[0].shape[1])
        _refuse(place, f"{name} is {want} here and {have} in it", "Use the model that it was trained on.")
    if layer.weight is module.get_input_embeddings().weight:
        _refuse(place, f"it changes {name}, whose weights are the input embedding's too")
    return layer


def _refuse(place: Path, why: str, fix: str = "") -> NoReturn:
    raise ModelError(f"adapter {place} cannot be merged", why=why, fix=fix or "Save it again with PEFT as plain LoRA.")

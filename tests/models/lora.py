"""LoRA adapters for tests: folders as PEFT saves them, and the oracle with their weights merged."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny import make_packing

from gristmill.types import Job
from gristmill_worker.models.adapter_files import load_adapters
from gristmill_worker.models.loader import LoadedModel

ATTENTION_AND_MLP = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def linear_shapes(model: Any, ends: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """(in, out) of the layers whose names end like this."""
    shapes = {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in ends and name:
            is_linear = isinstance(module, torch.nn.Linear)
            size = module.weight.shape
            shapes[name] = (size[1], size[0]) if is_linear else (size[0], size[1])
    return shapes


def save_adapter(
    folder: Path,
    model: Any,
    *,
    ends: tuple[str, ...] = ATTENTION_AND_MLP,
    rank: int = 4,
    seed: int = 1,
    ranks: Mapping[str, int] | None = None,
    **config: Any,
) -> Path:
    """Random matrices, large enough that answers change. `ranks` by whole names of layers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (size_in, size_out) in linear_shapes(model, ends).items():
        r = (ranks or {}).get(name, rank)
        for part, shape in (("A", (r, size_in)), ("B", (size_out, r))):
            matrix = torch.randn(shape, generator=generator) * 0.15
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = matrix
    save_file(tensors, folder / "adapter_model.safetensors")
    write_config(folder, **{"r": rank, "target_modules": list(ends), **config})
    return folder


def write_config(folder: Path, **config: Any) -> None:
    written = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))


def merged(model: Any, folder: Path, scales: Mapping[str, float] | float) -> Any:
    """The oracle: a copy of the model with W + scale * B @ A for its weights."""
    from safetensors.torch import load_file

    ours, tensors = copy.deepcopy(model), load_file(folder / "adapter_model.safetensors")
    for key, up in tensors.items():
        if not key.endswith("lora_B.weight"):
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_B.weight")
        scale = scales if isinstance(scales, float) else scales[name]
        delta = scale * (up.double() @ tensors[key.replace("lora_B", "lora_A")].double())
        module = ours.get_submodule(name)
        weight = module.weight.double()
        is_linear = isinstance(module, torch.nn.Linear)
        module.weight.data = (weight + (delta if is_linear else delta.T)).float()
    return ours


def with_adapters(loaded: LoadedModel, *, packed: bool, **folders: Path) -> LoadedModel:
    """The model with these adapters, whose identities are their names."""
    packing = make_packing() if packed else None
    return replace(loaded, adapters=load_adapters(loaded.model, folders, packing))


def of(adapter: str, job: Job) -> Job:
    return replace(job, adapter=adapter)


def rslora(alpha: float, rank: int) -> float:
    return alpha / math.sqrt(rank)

"""Reads LoRA adapters from folders as PEFT saves them, for a model that is loaded (fail closed)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from gristmill.adapter_config import MERGE_IT, WEIGHTS_FILE, LoraConfig, read_config
from gristmill.errors import ModelNotFound, ModelUnsupported
from gristmill_worker.models.adapters import Delta, Deltas, pack_or_keep
from gristmill_worker.models.linear import PackedLinear
from gristmill_worker.models.packing import Packing
from gristmill_worker.models.probe import CallRecorder, run_three_tokens

_NUM_PROBED = 3
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")
_AGAIN = "Save the adapter again, or copy its folder anew"


@dataclass(slots=True)
class _Layer:
    """A linear layer of the model, and whether it sees each token of each step, in their order."""

    in_features: int
    out_features: int
    sees_all: bool = False
    #: Of its input, and so of its weights.
    dtype: torch.dtype = torch.float32


@dataclass(slots=True)
class _Pair:
    """The two matrices of one layer, as far as they were found."""

    down: torch.Tensor | None = None  # lora_A [rank, in]
    up: torch.Tensor | None = None  # lora_B [out, rank]


def load_adapters(
    model: Any, folders: Mapping[str, Path], packing: Packing | None
) -> dict[str, Deltas]:
    """What the adapters in `folders` add to the layers of a model, under the same keys.

    `packing` is the model's own. Raises ModelNotFound and ModelUnsupported.
    """
    layers = _linear_layers(model) if folders else {}
    return {key: _read(folder, model, layers, packing) for key, folder in folders.items()}


def _read(
    folder: Path, model: Any, layers: Mapping[str, _Layer], packing: Packing | None
) -> Deltas:
    config = read_config(folder)
    pairs = _read_pairs(folder)
    _check_names(folder, config, set(pairs), model, layers)
    deltas: dict[str, Delta] = {}
    for name, pair in pairs.items():
        down, up = _checked(folder, config, name, pair, layers[name])
        matrices = [
            # A copy: what was read is the file itself, which may be written over later.
            matrix.to(model.device, layers[name].dtype, copy=True)
            for matrix in (down, up.float() * config.scale_of(name))
        ]
        if not all(bool(torch.isfinite(matrix).all()) for matrix in matrices):
            raise ModelUnsupported(
                f"The adapter in {folder} holds weights for {name} that are not finite, or not so "
                f"as {layers[name].dtype} times {config.scale_of(name):g}. {_AGAIN}."
            )
        deltas[name] = Delta(*(pack_or_keep(matrix, packing) for matrix in matrices))
    return deltas


def _read_pairs(folder: Path) -> dict[str, _Pair]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise ModelNotFound(f"{folder} holds no {WEIGHTS_FILE}. {_AGAIN}.")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelUnsupported(
            f"{path} cannot be read, it was cut or damaged: {error}. {_AGAIN}."
        ) from error
    pairs: dict[str, _Pair] = {}
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None:
            raise ModelUnsupported(
                f"{path} holds {key}, which is no matrix of a linear layer's LoRA. Train the "
                f"adapter on linear layers alone, or {MERGE_IT}."
            )
        pair = pairs.setdefault(found["module"], _Pair())
        if found["part"] == "A":
            pair.down = tensor
        else:
            pair.up = tensor
    return pairs


def _check_names(
    folder: Path,
    config: LoraConfig,
    found: set[str],
    model: Any,
    layers: Mapping[str, _Layer],
) -> None:
    """The weights must be of the layers that the configuration names, all of them and no others."""
    for name in sorted(found):
        why = _why_not(model, layers, name)
        if why:
            raise ModelUnsupported(
                f"The adapter in {folder} adds to {name}, {why}. Use the base that it was trained "
                f"on, or {MERGE_IT}."
            )
        if not config.targets(name):
            raise ModelUnsupported(
                f"{folder / WEIGHTS_FILE} has weights of {name}, which its configuration does not "
                f"name. {_AGAIN}."
            )
    missing = sorted(name for name in layers if config.targets(name) and name not in found)
    if missing or not found:
        raise ModelUnsupported(
            f"{folder / WEIGHTS_FILE} lacks weights of {len(missing)} layers that its "
            f"configuration names; the first is {missing[0] if missing else 'any'}. It may be an "
            f"adapter of another model, or its file was cut short. {_AGAIN}."
        )


def _why_not(model: Any, layers: Mapping[str, _Layer], name: str) -> str:
    """Why nothing can be added to the module of this name; empty where it can."""
    layer = layers.get(name)
    if layer is not None:
        return "" if layer.sees_all else "which does not see each token of a batch in its order"
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return f"and {type(model).__name__} has no layer of that name"
    if module is model.get_output_embeddings():
        return "which is the head of the model"
    return f"which is no linear layer but {type(module).__name__}"


def _checked(
    folder: Path, config: LoraConfig, name: str, pair: _Pair, layer: _Layer
) -> tuple[torch.Tensor, torch.Tensor]:
    rank = config.rank_of(name)
    wanted = (rank, layer.in_features), (layer.out_features, rank)
    seen = tuple(None if t is None else tuple(t.shape) for t in (pair.down, pair.up))
    if pair.down is None or pair.up is None or seen != wanted:
        raise ModelUnsupported(
            f"The adapter in {folder} has matrices of {seen[0]} and {seen[1]} for {name}, and this "
            f"model and its configuration want {wanted[0]} and {wanted[1]}. It was trained on "
            "another model: use the base that it belongs to."
        )
    return pair.down, pair.up


def _linear_layers(model: Any) -> dict[str, _Layer]:
    """Those that an adapter may add to, by name: all but the head."""
    head = model.get_output_embeddings()
    modules = {
        module: (name, _Layer(*shape))
        for name, module in model.named_modules()
        if module is not head and (shape := _shape(module)) is not None
    }
    blind: set[nn.Module] = set()

    def note(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        _, layer = modules[module]
        layer.sees_all, layer.dtype = True, args[0].dtype
        if args[0].shape[:-1].numel() != _NUM_PROBED:
            blind.add(module)

    hooks = [module.register_forward_pre_hook(note) for module in modules]
    try:
        # With logits of one token only, what stands behind that choice sees fewer.
        run_three_tokens(model, CallRecorder(), num_logits=1)
    finally:
        for hook in hooks:
            hook.remove()
    for module in blind:
        modules[module][1].sees_all = False
    return dict(modules.values())


def _shape(module: nn.Module) -> tuple[int, int] | None:
    """(in, out) of a linear layer."""
    if isinstance(module, nn.Linear | PackedLinear):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        return module.nx, module.nf
    return None

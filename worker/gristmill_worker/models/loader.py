"""Loads a model folder for the Engine: checks first, weights after. Safetensors only, no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
)

from gristmill.errors import ModelUnsupported, UsageError
from gristmill_worker.models.adapter_files import load_adapters
from gristmill_worker.models.adapters import Deltas
from gristmill_worker.models.fuse import fuse_and_pack
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.packing import choose_packing
from gristmill_worker.models.plain_weights import let_go_of_files, trim_memory
from gristmill_worker.models.probe import LayerSpec, forget_pad_token, probe
from gristmill_worker.models.row_kernels import RowKernels

#: Where configurations say how many positions a model knows, in the order of trust.
_POSITION_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed the probe, ready for a ModelRunner.

    `tokenizer` is the `tokenizers.Tokenizer` behind the folder's tokenizer; only its decode is
    used here.
    """

    model: torch.nn.Module
    layers: tuple[LayerSpec, ...]
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    tokenizer: Any
    #: Where a C compiler is, for a model in float32 on the CPU.
    row_kernels: RowKernels | None = None
    #: LoRA adapters by their identities.
    adapters: Mapping[str, Deltas] = field(default_factory=dict)

    @property
    def kv_bytes_per_token(self) -> int:
        itemsize = next(self.model.parameters()).element_size()
        return sum(layer.bytes_per_token(itemsize) for layer in self.layers)


def load_model(
    path: Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    max_model_len: int | None = None,
    cache_dir: Path | None = None,
    adapters: Mapping[str, Path] | None = None,
) -> LoadedModel:
    """Load a folder of config.json, tokenizer.json and *.safetensors.

    `max_model_len` is capped by the positions that the model knows. `cache_dir` keeps kernels that
    must be compiled first; without one the model runs in plain torch. `adapters` are folders of
    LoRA adapters by their identities. Raises ModelUnsupported, ModelNotFound, and UsageError where
    there is no such device.
    """
    check_device(device)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a local folder never needs the hub
    config = read_config(path)
    model_class = _model_class(config)
    if model_class.config_class is config.sub_configs.get("text_config"):
        config = config.get_text_config()  # the text part of a model of images (Emu3, Qwen 3.5)
    max_model_len = find_max_model_len(config, max_model_len)
    layers = probe(model_class, config, max_model_len=max_model_len)
    model, loading = model_class.from_pretrained(
        path,
        output_loading_info=True,
        dtype=getattr(torch, dtype),
        attn_implementation=ATTENTION,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_weights(path, model_class, loading)
    model.eval().requires_grad_(False).to(device)
    forget_pad_token(model)
    vocab_size = model.get_input_embeddings().num_embeddings
    kernels_dir = None if cache_dir is None else cache_dir / "kernels"
    packing = choose_packing(model.dtype, model.device, kernels_dir)
    kernels = None
    if packing is not None:
        kernels = None if kernels_dir is None else RowKernels.load(kernels_dir)
        fuse_and_pack(model, packing, kernels)
        let_go_of_files(model)
    loaded = LoadedModel(
        model=model,
        layers=layers,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        eos_token_ids=_eos_token_ids(path, config),
        tokenizer=AutoTokenizer.from_pretrained(path, trust_remote_code=False).backend_tokenizer,
        row_kernels=kernels,
        adapters=load_adapters(model, adapters or {}, packing),
    )
    trim_memory()  # to read a tokenizer takes several times what it is
    return loaded


def check_device(device: str) -> None:
    """Raises UsageError where there is no such device."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "The model shall run on a GPU, and this torch sees none. Install a driver and a torch "
            "built for it, or set GRISTMILL_DEVICE=cpu."
        )


def check_weights(path: Path, model_class: type[Any], loading: dict[str, Any]) -> None:
    """transformers makes up what a folder lacks, with a warning, and the rows would be noise."""
    wrong = sorted([*loading["missing_keys"], *map(str, loading["mismatched_keys"])])
    if wrong:
        raise ModelUnsupported(
            f"{path} lacks {len(wrong)} of the weights of {model_class.__name__}, or has them in "
            f"another shape; the first is {wrong[0]}. Its config.json may name another "
            "architecture, or a download was cut short; see README.md#models."
        )


def read_config(path: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except ValueError as error:  # an unknown model_type, or one that wants its own code to be run
        raise ModelUnsupported(
            f"transformers knows no model for {path / 'config.json'}, and models that bring their "
            f"own code are never run; see README.md#models. It says: {str(error).splitlines()[0]}"
        ) from error
    return config


def _model_class(config: PreTrainedConfig) -> type[Any]:
    try:
        model_class: type[Any] = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise ModelUnsupported(
            f"{config.architectures or type(config).__name__} is no causal language model of "
            "transformers; see README.md#models."
        ) from None
    return model_class


def find_max_model_len(config: PreTrainedConfig, wanted: int | None) -> int:
    text_config = config.get_text_config()
    for name in _POSITION_LIMITS:
        limit = getattr(text_config, name, None)
        if isinstance(limit, int) and limit > 0:
            return min(wanted or limit, limit)
    if wanted is not None:
        return wanted
    raise ModelUnsupported(
        f"{type(config).__name__} does not say how many positions the model knows "
        f"(none of {', '.join(_POSITION_LIMITS)}). Set --max-model-len."
    )


def _eos_token_ids(path: Path, config: PreTrainedConfig) -> frozenset[int]:
    """The ids that end a row, as `model.generate` would have them: from generation_config.json,
    else from config.json."""
    eos = config.get_text_config().eos_token_id
    if (path / "generation_config.json").is_file():
        configured = GenerationConfig.from_pretrained(path).eos_token_id
        eos = eos if configured is None else configured
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)

"""Loads a model that reads whole prompts and generates nothing (BERT and its like), exactly or not.

Its attention comes to us through the hook of models/hook.py, so that prompts are packed without
padding. Before it is used, prompts that are packed are compared with each of them alone in plain
transformers: a mask that was lost, or positions that were counted otherwise, would show.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_MAPPING, PreTrainedConfig

from gristmill.errors import ModelUnsupported
from gristmill_worker.attention.packed import PackedPrompts
from gristmill_worker.models.hook import ATTENTION, AttentionCall, forward_context
from gristmill_worker.models.loader import check_device, check_weights, find_max_model_len
from gristmill_worker.models.loader import read_config as read_model_config
from gristmill_worker.models.packed_weight import pack_model
from gristmill_worker.models.packing import choose_packing
from gristmill_worker.models.plain_weights import let_go_of_files, trim_memory
from gristmill_worker.models.probe import (
    CallRecorder,
    forget_pad_token,
    is_causal,
    probe_encoder,
    run_three_tokens,
)

#: Largest difference of a hidden state from plain transformers, as a share of the largest one.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
#: Lengths of the prompts that are compared: the second crosses most sliding windows.
_COMPARED_LENGTHS = (5, 200)


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """A model that passed the probe and the comparison. `first_position` is that of token 0."""

    model: torch.nn.Module
    max_model_len: int
    vocab_size: int
    first_position: int

    @torch.inference_mode()
    def hidden_states(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Last hidden states [T, hidden_size] of prompts, one prompt after the other."""
        device = next(self.model.parameters()).device
        lengths = [len(prompt) for prompt in prompts]
        positions = torch.cat([torch.arange(length) for length in lengths]) + self.first_position
        ids = torch.tensor([token_id for prompt in prompts for token_id in prompt])
        with forward_context(_Prompts(PackedPrompts(lengths))):
            output = self.model(
                input_ids=ids[None].to(device), position_ids=positions[None].to(device)
            )
        states: torch.Tensor = output.last_hidden_state[0]
        return states


class _Prompts:
    """A ForwardContext for prompts that are computed whole."""

    def __init__(self, prompts: PackedPrompts) -> None:
        self._prompts = prompts

    def attend(self, call: AttentionCall) -> torch.Tensor:  # [1, T, num_heads, v_dim]
        return self._prompts.attend(
            call.query, call.key, call.value, call.rules, is_causal=is_causal(call)
        )


def load_encoder(
    path: Path,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    max_model_len: int | None = None,
    cache_dir: Path | None = None,
) -> LoadedEncoder:
    """Load a folder of config.json and *.safetensors. Arguments and errors as `load_model`."""
    check_device(device)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a local folder never needs the hub
    config = read_model_config(path)
    model_class = _model_class(config)
    max_model_len = find_max_model_len(config, max_model_len)
    first_position = probe_encoder(model_class, config, max_model_len=max_model_len)
    # A pooler of its own is no part of what is read here, and many folders lack its weights.
    takes_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
    model, loading = model_class.from_pretrained(
        path,
        output_loading_info=True,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        use_safetensors=True,
        trust_remote_code=False,
        **({"add_pooling_layer": False} if takes_pooler else {}),
    )
    check_weights(path, model_class, loading)
    model.eval().requires_grad_(False).to(device)
    loaded = LoadedEncoder(
        model=model,
        max_model_len=min(max_model_len, _num_positions(config, max_model_len) - first_position),
        vocab_size=model.get_input_embeddings().num_embeddings,
        first_position=first_position,
    )
    _compare_with_transformers(loaded)
    kernels_dir = None if cache_dir is None else cache_dir / "kernels"
    packing = choose_packing(model.dtype, model.device, kernels_dir)
    if packing is not None:
        pack_model(model, packing, lambda: run_three_tokens(model, CallRecorder()))
        let_go_of_files(model)
    trim_memory()
    return loaded


def _model_class(config: PreTrainedConfig) -> type[Any]:
    try:
        model_class: type[Any] = MODEL_MAPPING[type(config)]
    except KeyError:
        raise ModelUnsupported(
            f"transformers has no base model for {type(config).__name__}; see README.md#models."
        ) from None
    return model_class


def _num_positions(config: PreTrainedConfig, default: int) -> int:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else default


@torch.inference_mode()
def _compare_with_transformers(loaded: LoadedEncoder) -> None:
    """Switches the model from eager attention to ours, and holds one against the other."""
    model: Any = loaded.model
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(loaded.vocab_size, (min(n, loaded.max_model_len),), generator=generator)
        for n in _COMPARED_LENGTHS
    ]
    pad = getattr(model.config, "pad_token_id", None)
    for prompt in prompts:  # a padding id within a prompt means something else to some models
        prompt[prompt == pad] = (pad or 0) + 1 if (pad or 0) + 1 < loaded.vocab_size else 0
    theirs = torch.cat(
        [model(prompt[None].to(model.device)).last_hidden_state[0] for prompt in prompts]
    )
    model.set_attn_implementation(ATTENTION)
    forget_pad_token(model)
    ours = loaded.hidden_states([prompt.tolist() for prompt in prompts])
    difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
    if not difference <= TOLERANCE[model.dtype]:
        raise ModelUnsupported(
            f"{type(model).__name__}: packed prompts differ by {difference:.1e} of the largest "
            "hidden state from the same prompts alone in transformers, so its vectors would be "
            "wrong here. Another engine may run it; see README.md#models."
        )

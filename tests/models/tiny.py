"""Tiny random models of several architectures, and the oracle: each row alone, by transformers."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM

from gristmill.types import Job, JobKind, Prompt, Row, SamplingParams
from gristmill_worker.models.fuse import fuse_and_pack
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.packing import Packing, choose_packing
from gristmill_worker.models.probe import probe
from gristmill_worker.models.row_kernels import RowKernels

VOCAB_SIZE = 199
EOS = 2

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
_LLAMA_LIKE = {**_COMMON, "num_key_value_heads": 2, "intermediate_size": 128, "head_dim": 16}

#: Architecture -> (configuration class, arguments). Windows are short, so that rows cross them.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _LLAMA_LIKE),
    "qwen3": ("Qwen3Config", _LLAMA_LIKE),
    "gemma2": (
        "Gemma2Config",
        {**_LLAMA_LIKE, "query_pre_attn_scalar": 16, "sliding_window": 8},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            **_LLAMA_LIKE,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "vocab_size": VOCAB_SIZE,
            "bos_token_id": 1,
            "eos_token_id": EOS,
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", {**_COMMON, "intermediate_size": 128}),
    "gpt_oss": (
        "GptOssConfig",
        {
            **_LLAMA_LIKE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}


class NumberDecoder:
    """Decodes ids as numbers, for tests in which text does not matter."""

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        return "".join(f"<{token_id}>" for token_id in ids)


def make_model(name: str) -> torch.nn.Module:
    """A random model with the eager attention of transformers: the oracle."""
    config_class, arguments = ARCHITECTURES[name]
    config = getattr(transformers, config_class)(**arguments)
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() >= 2:  # far larger than usual, so that greedy rows wander
            torch.nn.init.normal_(parameter, std=0.3)
        elif not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.1)
    return model.float().eval().requires_grad_(False)


@functools.cache
def make_packing() -> Packing:
    """The way in which this machine packs weights."""
    with tempfile.TemporaryDirectory() as folder:
        packing = choose_packing(torch.float32, torch.device("cpu"), Path(folder))
    if packing is None:
        pytest.skip("needs a C compiler or oneDNN")
    return packing


@functools.cache
def load_row_kernels() -> RowKernels | None:
    with tempfile.TemporaryDirectory() as folder:
        return RowKernels.load(Path(folder))


def as_loaded(model: torch.nn.Module, *, packed: bool) -> LoadedModel:
    """The same weights as the Engine takes them, with plain or packed linear layers."""
    ours = copy.deepcopy(model)
    config: Any = ours.config
    layers = probe(type(ours), config, max_model_len=256)
    ours.set_attn_implementation(ATTENTION)
    config.pad_token_id = None
    if packed:
        fuse_and_pack(ours, make_packing(), load_row_kernels())
    return LoadedModel(
        model=ours,
        layers=layers,
        max_model_len=256,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset([EOS]),
        tokenizer=NumberDecoder(),
        row_kernels=load_row_kernels() if packed else None,
    )


def greedy_alone(model: Any, prompt_ids: list[int], max_tokens: int, eos: bool = True) -> list[int]:
    """Greedy ids of one row alone, each token from a full forward pass without any cache."""
    ids = list(prompt_ids)
    with torch.inference_mode():
        for _ in range(max_tokens):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
            if eos and ids[-1] == EOS:
                break
    return ids[len(prompt_ids) :]


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths
    ]


def greedy_job(prompt_ids: list[int], max_tokens: int, **params: Any) -> Job:
    sampling = SamplingParams(max_tokens, temperature=0.0, **params)
    return Job((Row(0, "row"),), (Prompt(tuple(prompt_ids)),), sampling)


def score_job(token_ids: list[int], scored_from: int = 1, *, top: int = 1) -> Job:
    params = SamplingParams(0, temperature=0.0, logprobs=top)
    prompt = Prompt(tuple(token_ids), scored_from)
    return Job((Row(0, "row"),), (prompt,), params, JobKind.SCORE)


def save_folder(path: Path, model: Any) -> Path:
    """A folder as a user has it: weights, configuration, and a tokenizer of words w0, w1, …"""
    model.save_pretrained(path)
    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return path

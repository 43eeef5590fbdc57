"""A model as large as a GPU is busy with, and how long an Engine takes for rows of it."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
import transformers
from tiny import NumberDecoder, greedy_job, prompts

from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.hook import ATTENTION
from gristmill_worker.models.loader import LoadedModel
from gristmill_worker.models.probe import forget_pad_token, probe


def random_llama(device: torch.device) -> LoadedModel:
    """A model of 1.2 billion parameters of the shape that most have, with random weights."""
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=32_000,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    layers = probe(transformers.LlamaForCausalLM, config, max_model_len=8192)
    with device:
        model: Any = transformers.LlamaForCausalLM._from_config(
            copy.deepcopy(config), dtype=torch.bfloat16, attn_implementation=ATTENTION
        )
    forget_pad_token(model)
    model.eval().requires_grad_(False)
    return LoadedModel(
        model=model,
        layers=layers,
        max_model_len=8192,
        vocab_size=32_000,
        eos_token_ids=frozenset(),
        tokenizer=NumberDecoder(),
    )


def num_parameters(loaded: LoadedModel) -> int:
    return sum(parameter.numel() for parameter in loaded.model.parameters())


def drive(engine: ContinuousBatchingEngine, num_rows: int, length: int, max_tokens: int) -> float:
    """Seconds from the first step to the last; each row must get all of its tokens."""
    for i, row in enumerate(prompts([length] * num_rows, seed=length)):
        engine.add(str(i), greedy_job(row, max_tokens, ignore_eos=True))
    torch.cuda.synchronize()
    began = time.perf_counter()
    finished = []
    while engine.num_live:
        finished += engine.step().finished
    took = time.perf_counter() - began
    lengths = [len(end.generated.token_ids) for end in finished]
    assert lengths == [max_tokens] * num_rows
    return took

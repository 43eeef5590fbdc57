"""Turns a GGUF file into a float32 folder of safetensors, since reading it takes 40 seconds."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

#: What transformers leaves on a model that it read from GGUF, and would write down as quantised.
_QUANTIZATION_MARKS = ("hf_quantizer", "quantization_method")


def convert(gguf_path: Path, out_dir: Path) -> None:
    """Write config, tokenizer and weights of `gguf_path` into the folder `out_dir`."""
    source = {"pretrained_model_name_or_path": str(gguf_path.parent), "gguf_file": gguf_path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, trust_remote_code=False
    )
    model.is_quantized = False
    for mark in _QUANTIZATION_MARKS:
        if hasattr(model, mark):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)

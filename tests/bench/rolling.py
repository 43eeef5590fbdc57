"""Rolling perplexity of a long text: its memory by the number of tokens, and its value.

Usage: rolling.py [--tokens 1024 8192]

A random Llama of two narrow layers with a vocabulary of 49,152 and a window of 8,192 tokens, so
that the logits of a whole text at once would take 1.6 GB. Each length runs in a process of its own.
Prints the peak of the memory above what the loaded model takes, and the relative difference to a
direct computation in float64, which looks at one slice of positions after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _memory import forget_peak, peak_mib
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig

from gristmill.settings import Settings
from gristmill.types import Job, JobKind, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.models.loader import load_model

_VOCAB_SIZE, _WINDOW = 49_152, 8_192


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.folder:
        measure(arguments.folder, arguments.tokens[0])
        return
    print(
        "| tokens | seconds | peak above the model, MB | relative difference |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch))
        for num_tokens in arguments.tokens:
            command = [sys.executable, __file__, "--folder", scratch, "--tokens", str(num_tokens)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print(
                "| {num_tokens} | {seconds:.1f} | {peak_mb:.0f} | {difference:.0e} |".format(
                    **found
                )
            )


def make_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_WINDOW,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    Tokenizer(models.WordLevel({"w": 0}, unk_token="w")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def measure(folder: Path, num_tokens: int) -> None:
    loaded = load_model(folder, cache_dir=Settings().cache_dir)
    engine = build_engine(loaded, cache_dir=Settings().cache_dir, kv_memory_fraction=0.05)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(_VOCAB_SIZE, (num_tokens + 1,), generator=generator).tolist()
    run(engine, ids[:65])  # memory that is taken once
    forget_peak()
    before, begun = peak_mib(), time.perf_counter()
    total = run(engine, ids)
    seconds, peak = time.perf_counter() - begun, peak_mib() - before
    expected = direct(folder, ids)
    difference = abs(total - expected) / abs(expected)
    found = {"num_tokens": num_tokens, "seconds": seconds, "peak_mb": peak}
    print(json.dumps({**found, "difference": difference}))


def run(engine: Any, ids: list[int]) -> float:
    params = SamplingParams(0, temperature=0.0, logprobs=1)
    engine.add("row", Job((Row(0, "row"),), (Prompt(tuple(ids), 1),), params, JobKind.SCORE))
    while engine.num_live:
        for end in engine.step().finished:
            return math.fsum(at.logprob for at in end.scored)
    raise AssertionError("the row has no end")


def direct(folder: Path, ids: list[int]) -> float:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    total = 0.0
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids[:-1]])).last_hidden_state[0]
        for begin in range(0, len(hidden), 256):
            logits = model.lm_head(hidden[begin : begin + 256]).log_softmax(-1)
            targets = torch.tensor(ids[begin + 1 : begin + 257])
            total += float(logits.gather(-1, targets[:, None]).sum())
    return total


if __name__ == "__main__":
    main()

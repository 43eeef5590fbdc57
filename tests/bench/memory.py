"""Memory of the engine beyond interpreter and libraries, on the demo model.

Usage: memory.py [--rows 64] [--tokens 256]

Runs rows of that many tokens, prompt and answer, and compares what the process holds then, and the
most it ever held, with what it must hold: the weights once and the Blocks of the KV cache that were
written. Also with the plain copy of the embedding, which a model whose vocabulary projection is its
embedding keeps beside the packed one.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
from pathlib import Path

import psutil
import torch
from _memory import peak_mib

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.loader import load_model

_MB = 1024 * 1024


def resident_mb() -> float:
    """Memory of this process's own; pages of files it has mapped are counted while they are."""
    gc.collect()
    return psutil.Process().memory_info().rss / _MB


def answer(engine: ContinuousBatchingEngine, num_rows: int, num_tokens: int) -> int:
    """Runs the rows to their end; the most Blocks that were in use at once."""
    chance = random.Random(1)
    new_tokens = num_tokens // 4
    params = SamplingParams(new_tokens, temperature=0.0, ignore_eos=True)
    for n in range(num_rows):
        ids = tuple(chance.randrange(3, 49_000) for _ in range(num_tokens - new_tokens))
        engine.add(str(n), Job((Row(n, str(n)),), (Prompt(ids),), params))
    most = 0
    while engine.num_live:
        engine.step()
        most = max(most, engine.num_blocks - engine.block_manager.num_free_blocks)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    arguments = parser.parse_args()
    settings = Settings()
    folder = find_model("smollm2-135m", settings=settings, convert_gguf=convert).path
    torch.mm(torch.ones(8, 8), torch.ones(8, 8))  # what torch starts with its first product
    begun = resident_mb()

    loaded = load_model(Path(folder), cache_dir=settings.cache_dir)
    loading_peak = peak_mib() - begun
    engine = build_engine(loaded, cache_dir=settings.cache_dir, max_num_seqs=arguments.rows)
    num_blocks = answer(engine, arguments.rows, arguments.tokens)
    held, peak = resident_mb() - begun, peak_mib() - begun

    weights = os.path.getsize(Path(folder) / "model.safetensors") / _MB
    embedding = loaded.model.get_input_embeddings().weight
    plain_embedding = embedding.numel() * embedding.element_size() / _MB
    block_bytes = loaded.kv_bytes_per_token * engine.block_manager.block_size
    kv = num_blocks * block_bytes / _MB
    print(f"before the model        {begun:8.0f} MB")
    print(
        f"weights, once           {weights:8.0f} MB, "
        f"plain copy of the embedding {plain_embedding:.0f} MB"
    )
    print(f"KV cache that was used  {kv:8.0f} MB")
    print(f"most while loading      {loading_peak:8.0f} MB")
    for name, found in (("held after the run", held), ("most ever", peak)):
        beyond = found - weights - plain_embedding - kv
        print(
            f"{name:<23} {found:8.0f} MB: {beyond:+.0f} MB beyond that, "
            f"{beyond / weights:+.0%} of the weights"
        )


if __name__ == "__main__":
    main()

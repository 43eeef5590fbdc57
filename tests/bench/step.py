"""What a decode step is made of: the products with the weights, attention, and the rest.

Usage: step.py [--rows 64] [--contexts 64 512] [--steps 20]

Steps of the demo model take turns with the same products alone and, for attention, with the reading
of as many bytes as the rows' keys and values have. Medians; the share of the products is what the
goal of a step is about, the rate of attention is compared with that of plain reading.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.engine.forward_batch import build_forward_batch
from gristmill_worker.engine.plan import Scheduled
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.linear import PackedLinear
from gristmill_worker.models.loader import LoadedModel, load_model


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def decoding_engine(loaded: LoadedModel, num_rows: int, context: int) -> ContinuousBatchingEngine:
    """An engine whose rows have all their first tokens, at about this context."""
    engine = build_engine(
        loaded,
        cache_dir=Settings().cache_dir,
        max_num_seqs=num_rows,
        kv_memory_fraction=0.2,
        drafts=False,
    )
    chance = random.Random(context)
    params = SamplingParams(10_000, temperature=0.0, ignore_eos=True)
    for n in range(num_rows):
        ids = tuple(chance.randrange(3, loaded.vocab_size) for _ in range(context))
        engine.add(str(n), Job((Row(n, str(n)),), (Prompt(ids),), params))
    while len(engine.step().advanced) < num_rows:
        pass
    return engine


def products(loaded: LoadedModel, num_rows: int) -> Callable[[], None]:
    """All products of a step, on inputs of noise."""
    groups = {
        id(module._group): (module._group._weight, module.in_features)
        for module in loaded.model.modules()
        if isinstance(module, PackedLinear)
    }
    weights = list(groups.values())
    inputs = {width: torch.randn(num_rows, width) for _, width in weights}

    def run() -> None:
        for weight, width in weights:
            weight.multiply(inputs[width], None)

    return run


def attention(engine: ContinuousBatchingEngine, loaded: LoadedModel) -> Callable[[], None]:
    """The attention of one decode step in all layers, on queries of noise."""
    running = engine.scheduler.running
    block_size = engine.block_manager.block_size
    scheduled = [Scheduled.next_of(s, 1) for s in running]
    batch = build_forward_batch(scheduled, block_size, torch.device("cpu"))
    runner = engine._runner
    config = loaded.model.config
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = loaded.layers[0].k_dim
    query = torch.randn(len(running), num_heads, width)
    new = torch.randn(len(running), num_kv_heads, width)
    from gristmill_worker.attention.base import AttentionRules

    rules = AttentionRules(scale=width**-0.5)

    def run() -> None:
        for cache in runner.kv_cache.layers:
            runner.attention.forward(query, new, new, cache, batch.metadata, rules)

    return run


@dataclass(frozen=True, slots=True)
class Step:
    """Medians of a decode step, and of its parts alone. Times in seconds."""

    num_rows: int
    context: int
    step_s: float
    products_s: float
    attention_s: float
    read_s: float
    share: float
    num_bytes: int

    def __str__(self) -> str:
        return (
            f"| {self.num_rows} | {self.context} | {self.step_s * 1000:.1f} "
            f"| {self.products_s * 1000:.1f} | {self.share:.2f} | {self.attention_s * 1000:.1f} "
            f"| {self.num_bytes / self.attention_s / 1e9:.1f} "
            f"| {self.num_bytes / self.read_s / 1e9:.1f} |"
        )


@torch.inference_mode()
def measure(num_rows: int, contexts: Sequence[int], num_rounds: int) -> list[Step]:
    """Prints a table, and gives its rows."""
    settings = Settings()
    folder = find_model("smollm2-135m", settings=settings, convert_gguf=convert).path
    loaded = load_model(Path(folder), cache_dir=settings.cache_dir)
    multiply = products(loaded, num_rows)
    print("| rows | context | step ms | products ms | share | attention ms | GB/s | reading GB/s |")
    print("|---|---|---|---|---|---|---|---|")
    steps: list[Step] = []
    for context in contexts:
        engine = decoding_engine(loaded, num_rows, context)
        attend = attention(engine, loaded)
        num_bytes = sum(s.num_tokens for s in engine.scheduler.running) * loaded.kv_bytes_per_token
        memory = torch.ones(num_bytes // 4)
        rounds = [
            (timed(engine.step), timed(multiply), timed(attend), timed(memory.sum))
            for _ in range(num_rounds)
        ]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        share = statistics.median(one / whole for whole, one, _, _ in rounds)
        steps.append(Step(num_rows, context, *medians, share, num_bytes))
        print(steps[-1], flush=True)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    measure(arguments.rows, arguments.contexts, arguments.steps)


if __name__ == "__main__":
    main()

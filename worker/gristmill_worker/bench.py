"""How fast a model runs on this machine: a ladder of row counts and prompt lengths.

Random prompts, all there from the start; each row then decodes the same number of tokens, without
draft tokens, so that the machine is timed and not how predictable the text is. For each rung
prefill (until the last row has its first token) and decode (the steps after it) are told apart.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.loader import LoadedModel

ROWS = (1, 4, 16, 64, 256)
PROMPT_TOKENS = (32, 128, 512, 2048)
#: Rungs with more prompt tokens than this are left out: they take minutes on a CPU.
MAX_TOKENS = 32_768
NEW_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Rung:
    """One measurement. Times are seconds; `itl_s` is the median of the decode steps."""

    num_rows: int
    num_prompt_tokens: int
    prefill_s: float
    itl_s: float

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.num_rows * self.num_prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float:
        return self.num_rows / self.itl_s


def climb(
    loaded: LoadedModel,
    *,
    cache_dir: Path,
    rows: Iterable[int] = ROWS,
    prompt_tokens: Iterable[int] = PROMPT_TOKENS,
    new_tokens: int = NEW_TOKENS,
    max_tokens: int = MAX_TOKENS,
    max_num_batched_tokens: int = 512,
) -> Iterator[Rung]:
    """Measures rung after rung; those that do not fit into window or memory are left out."""
    lengths = list(prompt_tokens)
    for num_rows in rows:
        engine = build_engine(
            loaded,
            cache_dir=cache_dir,
            max_num_seqs=num_rows,
            max_num_batched_tokens=max(num_rows, max_num_batched_tokens),
            drafts=False,
        )
        room = engine.num_blocks * engine.block_manager.block_size
        _measure(engine, loaded.vocab_size, num_rows, 4, 2)  # what is done once is not timed
        for length in lengths:
            fits = num_rows * (length + new_tokens) <= room
            if (
                num_rows * length <= max_tokens
                and length + new_tokens <= engine.max_model_len
                and fits
            ):
                yield _measure(engine, loaded.vocab_size, num_rows, length, new_tokens)


def _measure(
    engine: ContinuousBatchingEngine, vocab_size: int, num_rows: int, length: int, new_tokens: int
) -> Rung:
    chance = random.Random(num_rows * 1_000_003 + length)
    params = SamplingParams(new_tokens, temperature=0.0, ignore_eos=True)
    for n in range(num_rows):
        prompt = Prompt(tuple(chance.randrange(vocab_size) for _ in range(length)))
        engine.add(str(n), Job((Row(n, str(n)),), (prompt,), params))
    begun = time.perf_counter()
    waiting_for_first = num_rows
    steps: list[float] = []
    prefill_s = 0.0
    while engine.num_live:
        step_begun = time.perf_counter()
        output = engine.step()
        if waiting_for_first:
            # Rows whose prompt is in decode while those of others are still computed.
            waiting_for_first -= len(output.advanced) - output.num_decode_tokens
            prefill_s = time.perf_counter() - begun
        else:
            steps.append(time.perf_counter() - step_begun)
    return Rung(num_rows, length, prefill_s, statistics.median(steps) if steps else prefill_s)


def table(rungs: Iterable[Rung]) -> Iterator[str]:
    """The lines of a Markdown table, as they are measured."""
    yield "| rows | prompt tokens | prefill tokens/s | ms per decode step | decode tokens/s |"
    yield "|---|---|---|---|---|"
    for rung in rungs:
        yield (
            f"| {rung.num_rows} | {rung.num_prompt_tokens} | {rung.prefill_tokens_per_s:,.0f} "
            f"| {rung.itl_s * 1000:,.1f} | {rung.decode_tokens_per_s:,.1f} |"
        )

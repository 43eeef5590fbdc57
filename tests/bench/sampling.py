"""What the parameters of sampling cost: 64 rows with all of them set against 64 greedy rows.

Usage: sampling.py [--rounds 3] [--rows 64] [--tokens 32]

Prints tokens/s of each kind, medians over rounds that alternate, and their ratio to greedy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.loader import load_model

_SAMPLED = {"temperature": 0.8, "seed": 1}
_PENALTIES = {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1}
_LIMITS = {"top_p": 0.95, "top_k": 50, "min_p": 0.02}
_REST = {
    "logit_bias": tuple((token_id, -2.0) for token_id in range(1000, 1300)),
    "min_tokens": 16,
    "stop": ("never written by this model",),
    "stop_token_ids": (3, 4, 5),
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": _SAMPLED,
    "top_p": {**_SAMPLED, "top_p": 0.95},
    "penalties, greedy": {"temperature": 0.0, **_PENALTIES},
    "logprobs, greedy": {"temperature": 0.0, "logprobs": 5},
    "all but logprobs": {**_SAMPLED, **_PENALTIES, **_LIMITS, **_REST},
    "all": {**_SAMPLED, **_PENALTIES, **_LIMITS, **_REST, "logprobs": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    settings = Settings()
    model = find_model("smollm2-135m", settings=settings, convert_gguf=convert)
    loaded = load_model(model.path, max_model_len=1024, cache_dir=settings.cache_dir)
    engine = build_engine(loaded, cache_dir=settings.cache_dir, max_num_seqs=args.rows)
    tokens_per_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    run(engine, args.rows, 4, {"temperature": 0.0})
    for _ in range(args.rounds):
        for kind, params in KINDS.items():
            seconds = run(engine, args.rows, args.tokens, params)
            tokens_per_s[kind].append(args.rows * args.tokens / seconds)
    greedy = statistics.median(tokens_per_s["greedy"])
    print("| parameters | tokens/s | to greedy |")
    print("|---|---|---|")
    for kind, rates in tokens_per_s.items():
        rate = statistics.median(rates)
        print(f"| {kind} | {rate:.0f} | {rate / greedy:.2f} |")


def run(
    engine: ContinuousBatchingEngine, num_rows: int, num_tokens: int, params: dict[str, Any]
) -> float:
    """Seconds of decoding, prefill aside: every row is in the batch before the clock starts."""
    for i in range(num_rows):
        # Prompts of one token each, so that the batch fills at once.
        prompt_ids = (1, 520 + i)
        sampling = SamplingParams(num_tokens + 1, ignore_eos=True, **params)
        engine.add(f"row-{i}", Job((Row(i, str(i)),), (Prompt(prompt_ids),), sampling))
    engine.step()
    begin = time.perf_counter()
    while engine.num_live:
        engine.step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()

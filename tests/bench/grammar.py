"""What grammars cost: 64 rows with 16 different JSON schemas against the same rows free.

Usage: grammar.py [--rounds 3] [--rows 64] [--tokens 40]

Rows of one kind are in the engine together, and each has the same number of tokens in both kinds:
a free row gets as many as its document took. Prints tokens/s of both, by the wall and by the CPU
seconds of the process (which other programs on the machine change less), medians over rounds that
alternate, and their ratios. Every document that was finished is checked against its schema.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jsonschema_rs

from gristmill.models import find_model
from gristmill.settings import Settings
from gristmill.types import FinishReason, Grammar, GrammarKind, Job, Prompt, Row, SamplingParams
from gristmill_worker.build import build_engine
from gristmill_worker.engine.base import Finished
from gristmill_worker.engine.engine import ContinuousBatchingEngine
from gristmill_worker.models.gguf import convert
from gristmill_worker.models.loader import load_model

_FIELDS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "maxLength": 30},
    "year": {"type": "integer", "minimum": 1, "maximum": 2100},
    "kind": {"enum": ["person", "place", "thing", "event"]},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    "score": {"type": "number", "minimum": 0, "maximum": 1},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "known": {"type": "boolean"},
    "place": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "zip": {"type": "integer"}},
        "required": ["city", "zip"],
        "additionalProperties": False,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=40)
    args = parser.parse_args()
    settings = Settings()
    model = find_model("smollm2-135m", settings=settings, convert_gguf=convert)
    loaded = load_model(model.path, max_model_len=1024, cache_dir=settings.cache_dir)
    engine = build_engine(loaded, cache_dir=settings.cache_dir, max_num_seqs=args.rows)
    wanted = schemas(16)
    bound = [params(args.tokens, i, wanted[i % len(wanted)]) for i in range(args.rows)]
    ends, _, _ = run(engine, bound)
    check(ends, wanted)
    lengths = [end.usage.completion_tokens for end in ends]
    free = [params(num, i, None) for i, num in enumerate(lengths)]
    kinds = {"free": free, "with a schema": bound}
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, of_rows in kinds.items():
            _, seconds, cpu_seconds = run(engine, of_rows)
            wall[kind].append(sum(lengths) / seconds)
            cpu[kind].append(sum(lengths) / cpu_seconds)
    print(f"{args.rows} rows, {len(wanted)} schemas, {sum(lengths)} tokens")
    print("| rows | tokens/s | to free | tokens/CPU s | to free |")
    print("|---|---|---|---|---|")
    for kind in kinds:
        cells = []
        for rates in (wall, cpu):
            rate = statistics.median(rates[kind])
            cells += [f"{rate:.1f}", f"{rate / statistics.median(rates['free']):.2f}"]
        print(f"| {kind} | {' | '.join(cells)} |")


def schemas(count: int) -> list[dict[str, Any]]:
    """Different ones of three fields each."""
    names = list(_FIELDS)
    chosen = [[names[(i + step) % len(names)] for step in (0, 1, 2 + i // 8)] for i in range(count)]
    return [
        {
            "type": "object",
            "properties": {name: _FIELDS[name] for name in three},
            "required": three,
            "additionalProperties": False,
        }
        for three in chosen
    ]


def params(num_tokens: int, seed: int, schema: dict[str, Any] | None) -> SamplingParams:
    grammar = None if schema is None else Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    return SamplingParams(
        num_tokens, temperature=0.7, seed=seed, ignore_eos=schema is None, grammar=grammar
    )


def run(
    engine: ContinuousBatchingEngine, of_rows: Sequence[SamplingParams]
) -> tuple[list[Finished], float, float]:
    """The ends of all rows, and seconds of wall and CPU from the first decode step to the last."""
    for i, sampling in enumerate(of_rows):
        # Prompts of two tokens each, so that the batch fills at once.
        engine.add(str(i), Job((Row(i, str(i)),), (Prompt((1, 520 + i)),), sampling))
    ends: dict[str, Finished] = {}
    ends |= {end.seq_id: end for end in engine.step().finished}
    begin, cpu_begin = time.perf_counter(), time.process_time()
    while engine.num_live:
        ends |= {end.seq_id: end for end in engine.step().finished}
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
    return [ends[str(i)] for i in range(len(of_rows))], seconds, cpu_seconds


def check(ends: Sequence[Finished], wanted: Sequence[dict[str, Any]]) -> None:
    finished = 0
    for i, end in enumerate(ends):
        assert end.error is None, end.error
        if end.finish_reason is FinishReason.STOP:
            finished += 1
            jsonschema_rs.validate(wanted[i % len(wanted)], json.loads(end.text))
    print(f"{finished} of {len(ends)} documents were finished, and satisfy their schemas")


if __name__ == "__main__":
    main()

"""Workers and wishes for the tests of the Router."""

from __future__ import annotations

from dataclasses import replace

from gristmill.fleet import (
    KnownWorker,
    StepTime,
    WorkerBeat,
    WorkerCard,
    WorkerState,
    lane_of,
)
from gristmill.queues.base import BULK_LANE
from gristmill.router import Load, Needs, Route, fleet_of, route
from gristmill.types import ModelPin

NOW = 1000.0
A, B = (ModelPin(name, f"rev-{name}", "tok", "float32") for name in "ab")
FEATURES = ("generate", "grammar", "logprobs")


def worker(
    limit: int,
    *,
    model: ModelPin = A,
    features: tuple[str, ...] = FEATURES,
    prefill: float | None = None,
    decode: float | None = None,
    state: WorkerState = WorkerState.READY,
    heard_s_ago: float = 0.0,
    lanes: tuple[str, ...] | None = None,
    device: str = "cpu",
    step_time: StepTime | None = None,
    max_num_seqs: int = 64,
    kv_tokens: int | None = None,
    window: int | None = None,
) -> KnownWorker:
    card = WorkerCard(
        *("wrk", "host", model, device, limit, max_num_seqs),
        kv_tokens=kv_tokens,
        features=features,
        window_tokens=limit if window is None else window,
        prefill_tokens_per_s=() if prefill is None else ((512, prefill),),
        decode_tokens_per_s=decode,
        step_time=step_time,
    )
    card = replace(card, lanes=(lane_of(card), BULK_LANE) if lanes is None else lanes)
    return KnownWorker(WorkerBeat(card, 0, state, NOW), 0.0, NOW - heard_s_ago)


def needs(
    row: int = 300,
    *,
    least: int | None = None,
    model: ModelPin = A,
    features: tuple[str, ...] = ("generate",),
    prompt: int = 2000,
    expected: int = 4000,
) -> Needs:
    least = row if least is None else least
    return Needs(
        *(model, row, least, frozenset(features)),
        num_jobs=10,
        num_prompt_tokens=prompt,
        num_expected_tokens=expected,
    )


def send(wanted: Needs, *workers: KnownWorker, load: Load | None = None) -> Route:
    return route(wanted, fleet_of(workers, NOW), load or Load(), now=NOW)


def lane(one: KnownWorker) -> str:
    return lane_of(one.card)

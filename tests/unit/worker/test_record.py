"""What a Worker records: of rows, steps and Attempts, and of all that goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from floor import LEASE_S, LONG, Floor
from pipeline import make_job

from gristmill.errors import StoreError
from gristmill.metrics import Process
from gristmill.queues.base import BULK_LANE
from gristmill.telemetry import Tally, Telemetry
from gristmill.telemetry.tally import Distribution
from gristmill.wire import encode_pointer
from gristmill_worker.attempt_span import MAX_ROW_SPANS
from gristmill_worker.engine.base import StepOutput
from gristmill_worker.worker import Worker

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class FullEngine(FakeEngine):
    """Says of its steps what a real one says."""

    def step(self) -> StepOutput:
        num_rows = min(len(self.live), self.max_num_seqs)
        output = super().step()
        finished = [
            replace(end, usage=replace(end.usage, cached_tokens=1)) for end in output.finished
        ]
        return replace(
            output,
            finished=finished,
            num_rows=num_rows,
            num_running=min(len(self.live), self.max_num_seqs),
            num_prefill_tokens=2,
            num_preempted=1,
            kv_used_tokens=16 * len(self.live),
        )


def watched(floor: Floor, **config: Any) -> tuple[Worker, Tally]:
    worker = floor.worker(engine=FullEngine, **config)
    tally = Tally(Process.WORKER)
    worker.watch(Telemetry(tally))
    return worker, tally


def told(tally: Tally) -> dict[str, Any]:
    """By name, and by the labels behind the model where there are any."""
    return {
        " ".join((series.metric.name.removeprefix("gristmill_"), *labels[1:])): value
        for series in tally.look()
        for labels, value in series.values.items()
    }


def test_all_of_a_row_is_counted_once() -> None:
    floor = Floor()
    jobs = [make_job(n, max_tokens=5) for n in range(6)] + [make_job(6, prompt=(666,))]
    floor.send(0, jobs)
    worker, tally = watched(floor)

    floor.run_dry(worker)
    found = told(tally)

    results = floor.results()
    num_tokens = sum(result.usage.completion_tokens for result in results)
    assert found["tokens_total generated"] == num_tokens
    assert found["tokens_total prompt_cached"] == found["prefix_cache_hits_total"] == 6
    assert found["tokens_total prompt_computed"] > 0
    assert found["ttft_seconds"].counts[-1] == 0 and sum(found["ttft_seconds"].counts) == 6
    assert sum(found["row_wait_seconds"].counts) == found["prefix_cache_lookups_total"] == 6
    ends = {name: found[f"jobs_finished_total {name}"] for name in ("stop", "length", "error")}
    assert ends["error"] == 1 and sum(ends.values()) == 7
    assert found["attempts_total done"] == 1
    assert found["segments_stored_total"] == len(floor.segments())


def test_steps_and_what_is_held_are_told_while_rows_run_and_afterwards() -> None:
    floor = Floor()
    floor.send(0, LONG[:6])
    worker, tally = watched(floor, max_num_seqs=4)
    floor.turn(worker, times=3)
    during = told(tally)
    floor.run_dry(worker)
    after = told(tally)

    steps: Distribution = during["step_rows"]
    assert sum(steps.counts) == 3 and steps.total == 12
    assert during["step_seconds"].total == pytest.approx(3.0)
    assert during["step_tokens"].total == 3 * (2 + 4)
    assert (during["leases"], during["running_rows"], during["waiting_rows"]) == (1, 4, 2)
    assert during["kv_used_tokens"] > 0 and during["preemptions_total"] == 3
    assert (after["leases"], after["running_rows"], after["waiting_rows"]) == (0, 0, 0)
    assert after["kv_used_tokens"] == 0


def test_a_lease_that_is_lost_is_counted_and_what_was_decoded_is_not_decoded_again() -> None:
    floor = Floor()
    shard = floor.send(0, LONG[:2])
    first, tally = watched(floor, flush_interval_s=5.0, quiet_flush_interval_s=5.0)
    floor.turn(first, times=4)
    floor.clock.advance(LEASE_S * 0.9)  # no renewal came through
    first.turn()
    floor.clock.advance(LEASE_S)
    floor.ring(shard)
    second, later = watched(floor)
    floor.run_dry(second)

    assert told(tally)["lease_losses_total"] == told(tally)["attempts_total fenced"] == 1
    assert told(later)["tokens_total resumed"] > 0


def test_calls_that_are_repeated_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    floor = Floor()
    floor.send(0, [make_job(1)])
    worker, tally = watched(floor, patience_s=100.0)
    floor.turn(worker)
    put, num_left = floor.store.put, 2

    def failing(key: str, body: bytes) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left >= 0:
            raise StoreError("away")
        put(key, body)

    monkeypatch.setattr(floor.store, "put", failing)
    for _ in range(60):
        floor.turn(worker)
        floor.clock.advance(1.0)
    assert len(floor.results()) == 1

    assert {
        (series.metric.name, labels): value
        for series in tally.look()
        for labels, value in series.values.items()
        if series.metric.name == "gristmill_retries_total"
    } == {("gristmill_retries_total", ("store",)): 2}


class SpanNotes:
    """A Tracer that keeps what it is told."""

    is_on = True
    provider = None

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def current(self) -> str:
        return ""

    def start(self, name: str, parent: str, *, facts: Any = None, at: float | None = None) -> Any:
        span = SpanNote(name, parent, dict(facts or {}), at, len(self.spans))
        self.spans.append(span)
        return span


class SpanNote:
    def __init__(self, name: str, parent: str, facts: Any, at: float | None, n: int) -> None:
        self.name, self.parent, self.facts, self.at = name, parent, facts, at
        self.traceparent = f"00-{'a' * 32}-{n:016x}-01"
        self.ended_at: float | None = None
        self.error = ""

    def tell(self, **facts: Any) -> None:
        self.facts |= facts

    def end(self, *, at: float | None = None, error: str = "") -> None:
        self.ended_at, self.error = at, error


def test_an_attempt_has_a_span_and_some_of_its_rows_have() -> None:
    floor = Floor()
    jobs = [make_job(n, max_tokens=3) for n in range(50)]
    jobs += [make_job(100 + n, prompt=(666, n)) for n in range(40)]
    shard = floor.send(0, jobs)
    floor.queue.receive(BULK_LANE, 1, 0)
    pointer = replace(shard.pointer, traceparent=TRACEPARENT)
    floor.queue.send(BULK_LANE, encode_pointer(pointer))
    worker, notes = floor.worker(max_num_seqs=16), SpanNotes()
    worker.watch(Telemetry(tracer=notes))
    for _ in range(200):
        floor.turn(worker)

    attempt, *rows = notes.spans
    assert (attempt.name, attempt.parent) == ("attempt", TRACEPARENT)
    assert attempt.facts["rows_ended"] == 90 and attempt.facts["reason"] == "done"
    assert {row.name for row in rows} == {"row"}
    assert {row.parent for row in rows} == {attempt.traceparent}
    assert len(rows) <= 2 * MAX_ROW_SPANS
    assert {row.error for row in rows} == {"", "context_length_exceeded"}
    assert all(row.at <= row.ended_at for row in rows)
    known = str([row.facts for row in rows])
    assert "row-" not in known  # a custom_id is the caller's text


def test_without_a_traceparent_nothing_is_traced() -> None:
    floor = Floor()
    floor.send(0, [make_job(1)])
    worker, notes = floor.worker(), SpanNotes()
    worker.watch(Telemetry(tracer=notes))

    floor.run_dry(worker)

    assert notes.spans == []

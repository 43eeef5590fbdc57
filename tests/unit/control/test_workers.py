"""What the control side makes of beats: lost, repeated, out of order, or no beats at all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline import PIN, Bench, fast_folder

from gristmill.control.accept import take_bells
from gristmill.control.sweep import sweep
from gristmill.errors import QueueRefused
from gristmill.fleet import (
    FORGET_AFTER_S,
    KnownWorker,
    WorkerBeat,
    WorkerCard,
    WorkerState,
    lane_of,
)
from gristmill.ledger import workers
from gristmill.message_wire import encode_beat
from gristmill.types import CONTROL_LANE

CARD = WorkerCard("wrk-1", "host", PIN, "cpu", 8192, 64, features=("generate",))
SMALL = replace(CARD, worker_id="wrk-2", max_row_tokens=512)


def ring(bench: Bench, *beats: WorkerBeat) -> None:
    for beat in beats:
        bench.queue.send(CONTROL_LANE, encode_beat(beat))


def beat(seq: int, state: WorkerState = WorkerState.READY, card: WorkerCard = CARD) -> WorkerBeat:
    return WorkerBeat(card, seq, state, 0.0, num_rows=seq)


def known(bench: Bench) -> list[KnownWorker]:
    with bench.ledger.read() as conn:
        return workers.list_workers(conn)


def test_a_beat_makes_a_worker_known_and_what_is_no_message_is_dropped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.queue.send(CONTROL_LANE, b'{"v":2,"kind":"beat","card":{}}')
    bench.queue.send(CONTROL_LANE, b'{"v":2,"kind":"whisper"}')
    bench.queue.send(CONTROL_LANE, b"nothing")
    ring(bench, beat(0))

    assert take_bells(bench.control) == 4
    assert take_bells(bench.control) == 0

    (worker,) = known(bench)
    assert (worker.beat, worker.heard_at) == (beat(0), bench.control.now)
    assert caplog.text.count("message skipped") == 3


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.randoms())
def test_whatever_is_lost_repeated_or_late_the_newest_beat_counts(
    sent: list[int], chance: random.Random
) -> None:
    with fast_folder() as folder:
        bench = Bench(folder)
        for seq in sent:
            ring(bench, beat(seq))
            if chance.random() < 0.5:
                take_bells(bench.control)
        take_bells(bench.control)

        (worker,) = known(bench)
        bench.ledger.close()

    assert worker.beat == beat(max(sent))


def test_a_worker_that_says_nothing_any_more_is_lost_and_comes_back_with_its_next_beat(
    bench: Bench,
) -> None:
    ring(bench, beat(0), beat(0, card=SMALL))
    take_bells(bench.control)
    bench.clock.advance(40)
    ring(bench, beat(1))
    take_bells(bench.control)
    bench.clock.advance(6)

    with bench.ledger.read() as conn:
        alive = workers.list_alive(conn, bench.clock())
    before = [worker.state_at(bench.clock()) for worker in known(bench)]
    ring(bench, beat(1, card=SMALL))
    take_bells(bench.control)

    assert [worker.card.worker_id for worker in alive] == ["wrk-1"]
    assert before == [WorkerState.READY, WorkerState.LOST]
    assert [worker.state_at(bench.clock()) for worker in known(bench)] == [WorkerState.READY] * 2


def test_a_beat_that_was_overtaken_does_not_bring_a_worker_back_that_has_ended(
    bench: Bench,
) -> None:
    ring(bench, beat(5, WorkerState.ENDED), beat(4))
    take_bells(bench.control)
    ring(bench, beat(4), beat(5))
    take_bells(bench.control)

    (worker,) = known(bench)
    assert worker.state_at(bench.clock()) is WorkerState.ENDED


def test_the_sweep_forgets_workers_of_yesterday(bench: Bench) -> None:
    ring(bench, beat(0), beat(0, card=SMALL))
    take_bells(bench.control)
    bench.clock.advance(FORGET_AFTER_S)
    ring(bench, beat(1, card=SMALL))
    take_bells(bench.control)
    bench.clock.advance(700)

    sweep(bench.control)

    assert [worker.card for worker in known(bench)] == [SMALL]


def test_the_lane_of_a_lost_pool_may_be_left_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(lane: str) -> None:
        raise QueueRefused("no right to")

    monkeypatch.setattr(bench.queue, "remove_lane", refuse)
    ring(bench, beat(0))
    take_bells(bench.control)
    bench.clock.advance(60)

    control = bench.control
    for _ in range(2):
        sweep(control)

    assert caplog.text.count(f"lane left behind lane={lane_of(CARD)}") == 1

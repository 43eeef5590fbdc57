"""What a Worker says of itself: at each change, now and then, and never at the cost of its work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import Clock, FakeEngine
from floor import LONG, Floor
from pipeline import PIN, MemoryStore, worker_config

from gristmill.errors import OutOfMemory, QueueError, QueueRefused
from gristmill.fleet import KnownWorker, WorkerBeat, WorkerCard, WorkerState, lane_of
from gristmill.message_wire import decode_beat, decode_news
from gristmill.pools import Fleet, fleet_of
from gristmill.queues.base import BULK_LANE
from gristmill.queues.memory import MemoryQueue
from gristmill.types import CONTROL_LANE, Bell
from gristmill_worker import announcer as announcer_module
from gristmill_worker.announcer import Announcer
from gristmill_worker.equip import Equipment
from gristmill_worker.worker import Worker, build

CARD = WorkerCard("wrk-1", "host", PIN, "cpu", 512, 4)


def heard(queue: Any) -> list[WorkerBeat]:
    """The beats that lie on the control lane; from now on somebody listens there."""
    leases = queue.receive(CONTROL_LANE, 999, 0)
    for lease in leases:
        queue.ack(lease)
    news = [decode_news(lease.body) for lease in leases]
    return [one for one in news if isinstance(one, WorkerBeat)]


def listened_to() -> MemoryQueue:
    queue = MemoryQueue(60.0)
    heard(queue)
    return queue


def wait_for(is_so: Callable[[], Any]) -> None:
    turn = threading.Event()
    for _ in range(6000):
        if is_so():
            return
        turn.wait(0.01)
    raise AssertionError("in vain")


def states(beats: list[WorkerBeat]) -> list[str]:
    return [beat.state.value for beat in beats]


def test_a_worker_tells_of_each_state_and_of_its_end() -> None:
    queue = listened_to()
    announcer = Announcer(queue, CARD)

    announcer.start()
    wait_for(lambda: queue.stats(CONTROL_LANE).visible)
    with announcer:
        wait_for(lambda: queue.stats(CONTROL_LANE).visible >= 2)
        announcer.say(WorkerState.DRAINING)
        wait_for(lambda: queue.stats(CONTROL_LANE).visible >= 3)
    beats = heard(queue)

    assert states(beats) == ["loading", "ready", "draining", "ended"]
    assert [beat.seq for beat in beats] == sorted({beat.seq for beat in beats})


def test_a_worker_that_fails_says_that_it_has_ended() -> None:
    queue = listened_to()

    with pytest.raises(ZeroDivisionError), Announcer(queue, CARD):
        raise ZeroDivisionError

    assert states(heard(queue))[-1] == "ended"


def test_where_nobody_listens_nothing_piles_up() -> None:
    deaf, full = MemoryQueue(60.0), listened_to()
    for queue in (deaf, full):
        announcer = Announcer(queue, CARD)
        for _ in range(50):
            announcer.send()

    assert deaf.stats(CONTROL_LANE).visible == 0
    assert full.stats(CONTROL_LANE).visible == 1


def test_a_lane_that_nobody_empties_gets_no_more_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = listened_to()
    monkeypatch.setattr(announcer_module, "_MAX_UNHEARD", 3)
    for n in range(9):
        Announcer(queue, replace(CARD, worker_id=f"wrk-{n}")).send()

    assert queue.stats(CONTROL_LANE).visible == 3


def test_tokens_per_second_are_those_since_the_beat_before() -> None:
    clock = Clock()
    announcer = Announcer(MemoryQueue(60.0), CARD, monotonic=clock, wall=clock)
    done = [0]
    announcer.fill = lambda beat: replace(beat, num_prefill_tokens=done[0])
    found = []
    for num_tokens in (100, 400, 400):
        clock.advance(10)
        done[0] = num_tokens
        found.append(announcer.beat())

    assert [beat.tokens_per_s for beat in found] == [10.0, 30.0, 0.0]
    assert [beat.seq for beat in found] == [0, 1, 2]
    assert found[-1].at == clock.now


class BadQueue(MemoryQueue):
    """Fails, or does not answer until `gate` is set, when a beat is sent."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(60.0)
        self.gate = threading.Event()
        self.error = error
        self.num_tries = 0

    def send(self, lane: str, body: bytes, **options: Any) -> None:
        if lane == CONTROL_LANE and b'"kind":"beat"' in body:
            self.num_tries += 1
            if self.error is not None:
                raise self.error
            self.gate.wait(60)
        super().send(lane, body, **options)


def run_to_end(queue: MemoryQueue) -> tuple[Worker, list[Bell]]:
    """A Worker, with threads of its own, that has one Shard to do."""
    floor = Floor(queue=queue)
    queue.receive(CONTROL_LANE, 1, 0)
    floor.send(0, LONG[:2])
    worker = Worker(
        FakeEngine(),
        queue,
        floor.store,
        worker_config(idle_wait_s=0.01, exit_when_idle_s=0.0, patience_s=60.0),
    )
    worker.run(threading.Event())
    leases = queue.receive(CONTROL_LANE, 999, 0)
    return worker, [n for lease in leases if isinstance(n := decode_news(lease.body), Bell)]


@pytest.mark.parametrize("error", [QueueError("away"), QueueRefused("no"), ZeroDivisionError()])
def test_a_queue_that_takes_no_beats_costs_nothing_else(error: Exception) -> None:
    queue = BadQueue(error)

    worker, bells = run_to_end(queue)

    assert bells and worker.health.troubles == ()
    assert queue.num_tries >= 2
    assert queue.stats(BULK_LANE).visible + queue.stats(BULK_LANE).leased == 0


def test_a_queue_that_does_not_answer_holds_up_neither_rows_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer_module, "_LAST_WORD_S", 0.01)
    queue = BadQueue()

    _, bells = run_to_end(queue)
    queue.gate.set()

    assert bells
    assert queue.stats(BULK_LANE).visible + queue.stats(BULK_LANE).leased == 0


def test_a_beat_tells_what_the_worker_holds_and_how_fast_it_is() -> None:
    floor = Floor()
    worker = floor.worker(step_s=0.5, max_num_seqs=2)
    floor.send(0, LONG[:6])

    floor.turn(worker, times=3)
    beat = worker._announcer.beat()

    assert (beat.num_shards, beat.num_rows + beat.num_waiting) == (1, 6)
    assert beat.num_generated_tokens == 6
    assert beat.card.decode_tokens_per_s == 4.0
    assert beat.card.step_time is not None and beat.card.step_time.of(2, 0) <= 0.5
    assert beat.card.lanes == (lane_of(beat.card), BULK_LANE)
    assert decode_beat(_sent(worker)).card == beat.card


def _sent(worker: Worker) -> bytes:
    heard(worker._queue)
    worker._announcer.send()
    (lease,) = worker._queue.receive(CONTROL_LANE, 9, 0)
    return lease.body


def test_lost_leases_are_counted() -> None:
    floor = Floor()
    worker = floor.worker()
    floor.send(0, LONG[:2])
    floor.turn(worker)

    floor.clock.advance(floor.queue.lease_s)
    worker.turn()

    assert worker._announcer.beat().num_lease_losses == 1


def equipped(*, kv_tokens: int = 4096) -> Equipment:
    return Equipment(
        FakeEngine(max_num_seqs=7),
        "seven rows at once",
        device="cuda NVIDIA H200",
        memory_bytes=2**37,
        max_row_tokens=2000,
        features=("generate", "score"),
        kv_tokens=kv_tokens,
    )


def test_a_worker_is_heard_of_while_it_loads_and_known_when_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = listened_to()
    told: list[WorkerBeat] = []

    def load(config: Any) -> Equipment:
        wait_for(lambda: told.extend(heard(queue)) or told)
        return equipped()

    monkeypatch.setattr("gristmill_worker.equip.load_engine", load)
    worker = build(worker_config(exit_when_idle_s=0.0, idle_wait_s=0.01), queue, MemoryStore())
    worker.run(threading.Event())
    beats = [*told, *heard(queue)]

    assert states(beats)[0] == "loading" and states(beats)[-1] == "ended"
    assert len({beat.worker_id for beat in beats}) == 1
    first, last = beats[0].card, beats[-1].card
    assert (first.model, first.max_row_tokens, first.features, first.lanes) == (PIN, 0, (), ())
    assert (first.window_tokens, last.window_tokens) == (512, 512)
    assert (last.device, last.memory_bytes, last.kv_tokens) == ("cuda NVIDIA H200", 2**37, 4096)
    assert (last.max_row_tokens, last.max_num_seqs) == (2000, 7)
    assert last.lanes == (lane_of(last), BULK_LANE)


def test_a_worker_whose_model_cannot_be_loaded_says_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(config: Any) -> Equipment:
        raise OutOfMemory("too large")

    queue = listened_to()
    monkeypatch.setattr("gristmill_worker.equip.load_engine", fail)

    with pytest.raises(OutOfMemory):
        build(worker_config(), queue, MemoryStore())

    last = heard(queue)[-1]
    assert last.state is WorkerState.ENDED
    # No row waits for a machine that never took any.
    assert fleet_of([KnownWorker(last, 0.0, 60.0)], 60.0) == Fleet()

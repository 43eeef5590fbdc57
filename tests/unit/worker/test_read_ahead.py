"""A Worker reads ahead what takes about a minute by its own speed, and is never without a Shard."""

from __future__ import annotations

import pytest
from floor import LONG, Floor
from pipeline import make_job

from gristmill.queues.base import BULK_LANE
from gristmill_worker.load import READ_AHEAD_S, Load


def leased(floor: Floor) -> int:
    return floor.queue.stats(BULK_LANE).leased


def test_before_its_first_step_it_takes_one_shard_and_another_ahead() -> None:
    floor = Floor()
    for n in range(9):
        floor.send(n, [LONG[n]])
    worker = floor.worker(max_num_seqs=8)
    seen: list[int] = []
    step = floor.engine.step

    def look() -> object:
        seen.append(leased(floor))
        return step()

    floor.engine.step = look  # type: ignore[method-assign, assignment]

    floor.turn(worker, times=2)

    assert seen[0] == 2, "it does not know how long they take"
    assert seen[1] > 2, "now it does"


def test_a_slow_worker_leaves_to_others_what_would_wait_here_for_minutes() -> None:
    rows = [make_job(i, max_tokens=200) for i in range(40)]

    def taken(step_s: float) -> int:
        floor = Floor()
        for n in range(20):
            floor.send(n, rows[2 * n : 2 * n + 2])
        worker = floor.worker(step_s=step_s, max_num_seqs=16)
        floor.turn(worker, times=4)
        most = leased(floor)
        floor.run_dry(worker)
        assert len(floor.results()) == 40, "never idle while there is a Shard"
        return most

    slow, fast = taken(10.0), taken(0.01)

    assert slow < fast
    assert fast == 16, "twice as many rows as run at once"


@pytest.mark.parametrize("kv_tokens", [None, 10_000])
def test_room_is_a_minute_of_work_less_what_waits(kv_tokens: int | None) -> None:
    def room(num_tokens_ahead: int, tokens_per_s: float | None) -> int | None:
        load = Load(1, 4, 5000, num_tokens_ahead, tokens_per_s)
        return load.room_tokens(kv_tokens, [])

    assert room(0, 10.0) == READ_AHEAD_S * 10
    assert room(400, 10.0) == READ_AHEAD_S * 10 - 400
    assert room(700, 10.0) == 0
    assert room(0, 0.001) == 1, "a Shard however long it takes"
    assert room(0, 10_000.0) == (600_000 if kv_tokens is None else 15_000)
    assert room(3000, None) == (None if kv_tokens is None else 15_000)


def test_before_the_first_step_a_third_shard_has_no_room() -> None:
    assert Load(2, 4, 5000, 5000).room_tokens(None, []) == 0
    assert Load(1, 2, 5000, 5000).room_tokens(None, []) is None

"""Machines that are taken away at random condemn no row; a row that kills them is found.

A death comes in the middle of a step or beside a write, as SIGKILL does: where nothing of what was
under way has been told to anybody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from fake_engine import FakeEngine, fake_tokens
from floor import LEASE_S, Floor
from pipeline import MemoryStore, make_job

from gristmill.queues.base import BULK_LANE
from gristmill_worker import evidence
from gristmill_worker.evidence import DEATHS, MOST_DEATHS

#: Of a few tokens, so that whole Shards come to their end under many kills.
SHORT = [job for idx in range(400) if 3 <= len(fake_tokens(job := make_job(idx))) <= 8]


class Killed(BaseException):
    """SIGKILL: nothing catches it."""


@dataclass
class Spot:
    """Machines, each of which is taken away with this chance at each step and each write."""

    chance: float
    rng: random.Random
    num_deaths: int = 0
    floor: Floor = field(default_factory=Floor)

    def __post_init__(self) -> None:
        store = MemoryStore(self.floor.journal)
        put = store.put

        def put_or_die(key: str, body: bytes) -> None:
            self.strike()
            put(key, body)
            self.strike()

        self.floor.store = store
        self.put_in_peace, store.put = put, put_or_die  # type: ignore[method-assign]

    def strike(self) -> None:
        if self.rng.random() < self.chance / 3:
            raise Killed

    def send(self, jobs: list[Any]) -> None:
        chance, self.chance = self.chance, 0.0
        self.floor.send(0, jobs)
        self.chance = chance

    def live(self) -> bool:
        """One Worker, to its end or that of its work. Whether work is left."""
        spot = self

        class Machine(FakeEngine):
            def step(self) -> Any:
                spot.strike()
                return super().step()

        worker = self.floor.worker(engine=Machine, max_num_seqs=8)
        try:
            self.floor.run_dry(worker)
        except (Killed, RuntimeError) as death:
            self.num_deaths += isinstance(death, RuntimeError)
            self.floor.clock.advance(LEASE_S + 1)
            return True
        return False

    def failed(self) -> set[int]:
        return {result.job_idx for result in self.floor.results() if result.error}

    def answered(self) -> set[int]:
        return {result.job_idx for result in self.floor.results() if not result.error}


def batch_of(num_rows: int, chance: float, seed: int) -> Spot:
    spot = Spot(chance, random.Random(seed))
    spot.send(SHORT[:num_rows])
    while spot.live():
        pass
    assert spot.failed() | spot.answered() == set(range(num_rows))
    return spot


@pytest.mark.parametrize("chance", [0.1, 0.4])
@pytest.mark.parametrize("num_rows", [1, 3, 12])
def test_machines_that_are_taken_away_condemn_no_row(num_rows: int, chance: float) -> None:
    for seed in range(12):
        assert batch_of(num_rows, chance, seed).failed() == set(), seed


def test_two_deaths_would_condemn_rows_that_are_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rule above has to be better than."""
    monkeypatch.setattr(evidence, "deaths_that_prove", lambda *_: DEATHS)

    assert any(batch_of(12, 0.4, seed).failed() for seed in range(12))


@pytest.mark.parametrize("num_rows", [1, 3, 12])
@pytest.mark.parametrize("chance", [0.0, 0.1])
def test_a_row_that_kills_is_found_in_bounded_deaths(num_rows: int, chance: float) -> None:
    for seed in range(6):
        spot = Spot(chance, random.Random(seed))
        poison = seed % num_rows
        jobs = SHORT[:num_rows]
        jobs[poison] = make_job(jobs[poison].rows[0].idx, prompt=[FakeEngine.POISON])
        spot.send(jobs)

        while spot.live():
            # The deaths until the Shard is isolated may be broken by the progress of others.
            assert spot.num_deaths <= 2 * DEATHS + MOST_DEATHS

        assert spot.failed() == {poison}
        assert spot.answered() == set(range(num_rows)) - {poison}


def test_rows_that_died_alone_run_last_the_least_suspected_first() -> None:
    floor = Floor()
    jobs = [make_job(idx) for idx in range(6)]
    for idx in (0, 1):
        jobs[idx] = make_job(idx, prompt=[FakeEngine.POISON, idx])
    floor.send(0, jobs)

    for _ in range(6):
        worker = floor.worker(max_num_seqs=8)
        with pytest.raises(RuntimeError):
            floor.run_dry(worker)
        floor.clock.advance(LEASE_S + 1)

    newest = {segment.attempt_id: segment.mark for segment in floor.segments()}
    lone = sorted((m.order, m.alone) for m in newest.values() if m.alone is not None)
    assert [alone for _, alone in lone] == [0, 1, 0, 1]
    assert {result.job_idx for result in floor.results()} == {2, 3, 4, 5}
    assert floor.queue.stats(BULK_LANE).leased == 0

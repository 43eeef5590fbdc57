"""One batch on machines of two sizes, whichever is ready first: the same rows, as of the model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from drive import make_engine
from pipeline import BATCH, TENANT, Bench, fast_folder, make_windows, worker_config
from tiny import as_loaded, greedy_alone, greedy_job, make_model, prompts

from gristmill.control.accept import take_bells
from gristmill.control.dispatch import dispatch
from gristmill.control.sweep import sweep
from gristmill.fleet import FORGET_AFTER_S, WorkerState
from gristmill.settings import Settings
from gristmill.stores.segments import list_segments, read_segment
from gristmill.types import FinishReason, Row
from gristmill_worker.announcer import Announcer
from gristmill_worker.card import plain_card
from gristmill_worker.worker import Worker

MODEL = make_model("llama")
LOADED = as_loaded(MODEL, packed=False)
#: What the KV cache of each holds; the window of the model is 256.
SIZES = {"small": 24, "large": 48}
#: The last one fits into the large one only.
PROMPTS = prompts([3, 9, 41])
JOBS = [
    replace(greedy_job(ids, 10 if i == 1 else 200, ignore_eos=True), rows=(Row(i, f"row-{i}"),))
    for i, ids in enumerate(PROMPTS)
]


class House:
    """A control side and Workers with Engines of their own, in this thread, by one clock."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.announcers: dict[str, Announcer] = {}
        self.workers: dict[str, Worker] = {}
        take_bells(bench.control)  # from now on somebody listens
        bench.create()
        bench.ingest(make_windows(JOBS))

    def load(self, name: str) -> None:
        config = replace(worker_config(), max_model_len=256)
        card = replace(plain_card(config, kv_tokens=SIZES[name]), device=f"cuda {name}")
        self.announcers[name] = Announcer(
            self.bench.queue, card, monotonic=self.bench.clock, wall=self.bench.clock
        )

    def make_ready(self, name: str) -> None:
        engine = make_engine(LOADED, num_blocks=SIZES[name] // 4)
        announcer = self.announcers[name]
        announcer.card = replace(announcer.card, max_row_tokens=engine.max_model_len)
        announcer.say(WorkerState.READY)
        self.workers[name] = Worker(
            engine,
            self.bench.queue,
            self.bench.store,
            worker_config(),
            kv_tokens=SIZES[name],
            announcer=announcer,
            monotonic=self.bench.clock,
            wall=self.bench.clock,
        )

    def beat(self) -> None:
        for announcer in self.announcers.values():
            announcer.send()
        take_bells(self.bench.control)

    def run(self, seconds: int) -> None:
        """To the end of the batch at most."""
        for second in range(seconds):
            if self.bench.batch.completed == len(JOBS):
                return
            if second % 5 == 0:
                self.beat()
            take_bells(self.bench.control)
            dispatch(self.bench.control)
            for worker in self.workers.values():
                worker.leases.renew()
                for _ in range(20):
                    worker.turn()
            self.bench.clock.advance(1)
            take_bells(self.bench.control)
            sweep(self.bench.control)

    def decoded(self, shard_n: int) -> int:
        """Tokens of the only row of a Shard that has not ended, as the Store knows them."""
        found = list_segments(self.bench.store, TENANT, BATCH, self.bench.batch.run_id, shard_n)
        segments = [s for bell in found if (s := read_segment(self.bench.store, bell))]
        return sum(len(c.token_ids) for s in segments for c in s.checkpoints)

    def answers(self) -> dict[int, tuple[tuple[int, ...], FinishReason]]:
        found = list_segments(self.bench.store, TENANT, BATCH, self.bench.batch.run_id)
        results = [
            r for bell in found if (s := read_segment(self.bench.store, bell)) for r in s.results
        ]
        return {
            row.idx: (result.choices[0].token_ids, result.choices[0].finish_reason)
            for result in results
            for row in result.rows
            if result.error is None
        }


@functools.cache
def alone(i: int, num_tokens: int) -> tuple[int, ...]:
    """The answer to one row, by transformers."""
    return tuple(greedy_alone(MODEL, PROMPTS[i], num_tokens, eos=False))


@pytest.fixture
def house() -> Iterator[House]:
    with fast_folder() as folder:
        settings = Settings(shard_max_jobs=1, resend_after_s=20.0, lease_s=8.0)
        yield House(bench := Bench(folder, settings=settings))
        bench.ledger.close()


@pytest.mark.parametrize("first", ["small", "large"])
def test_the_rows_are_the_same_whichever_machine_is_ready_first(house: House, first: str) -> None:
    second = "large" if first == "small" else "small"
    house.run(2)
    house.load(first)
    house.make_ready(first)
    house.load(second)
    house.run(8)
    early = house.answers()
    house.make_ready(second)
    house.run(80)

    assert early.keys() <= {1}, "the other may take more"
    assert house.answers() == {
        i: (alone(i, num), FinishReason.LENGTH)
        for i, ids in enumerate(PROMPTS)
        for num in [10 if i == 1 else 48 - len(ids)]
    }


def test_a_larger_machine_that_joins_half_way_ends_answers_where_they_ended_before(
    house: House,
) -> None:
    house.load("small")
    house.make_ready("small")
    house.run(8)
    early = house.answers()
    house.load("large")
    house.make_ready("large")
    house.run(80)

    assert 0 < len(early) < 3
    assert {i: len(ids) for i, (ids, _) in house.answers().items()} == {
        i: 10 if i == 1 else (24 if i < 2 else 48) - len(ids) for i, ids in enumerate(PROMPTS)
    }


def test_what_an_answer_had_beyond_a_limit_that_was_lowered_is_cut(house: House) -> None:
    """The machine that takes the most goes for good while it decodes: no row fails for that."""
    for name in ("large", "small"):
        house.load(name)
        house.make_ready(name)
    house.beat()
    house.bench.clock.advance(8)  # nobody else was started together with them
    dispatch(house.bench.control)
    large = house.workers.pop("large")
    for _ in range(30):
        large.turn()
    large.drain()
    had = house.decoded(0)
    del house.announcers["large"]
    house.bench.clock.advance(FORGET_AFTER_S)
    house.run(30)

    num_left = SIZES["small"] - len(PROMPTS[0])
    assert num_left < had < SIZES["large"] - len(PROMPTS[0])
    assert house.answers()[0] == (alone(0, num_left), FinishReason.LENGTH)

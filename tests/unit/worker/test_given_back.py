"""A worker gives back what the Router would not have sent it, and runs what nobody else could."""

from __future__ import annotations

from dataclasses import replace

import pytest
from floor import LEASE_S, Floor
from pipeline import TENANT, make_job, worker_config

from gristmill.queues.base import BULK_LANE
from gristmill.row_limits import add_limit
from gristmill.stores.keys import limits_prefix
from gristmill.types import FinishReason, Grammar, GrammarKind, SamplingParams
from gristmill.wire import encode_pointer
from gristmill_worker.announcer import Announcer
from gristmill_worker.card import plain_card
from gristmill_worker.worker import Worker

WITH_GRAMMAR = SamplingParams(20, grammar=Grammar(GrammarKind.REGEX, "a+"))
GIVEN_BACK = [f"release bulk {LEASE_S:.0f}"]


def begin(
    floor: Floor, params: SamplingParams | None, row_tokens: int, *, is_sole: bool = False
) -> None:
    """A Shard for workers that take rows of so many tokens, and a worker without grammars."""
    job = make_job(0)
    shard = floor.send(0, [replace(job, params=params or job.params)])
    for lease in floor.queue.receive(BULK_LANE, 1, 0):
        floor.queue.ack(lease)
    pointer = replace(shard.pointer, row_tokens=row_tokens)
    floor.queue.send(BULK_LANE, encode_pointer(pointer))
    floor.journal.clear()
    floor.worker()
    config = worker_config(is_sole=is_sole)
    card = replace(plain_card(config, kv_tokens=None), features=("generate", "score"))
    worker = Worker(
        floor.engine,
        floor.queue,
        floor.store,
        config,
        announcer=Announcer(floor.queue, card),
        monotonic=floor.clock,
        wall=floor.clock,
    )
    floor.turn(worker, times=40)


@pytest.mark.parametrize("row_tokens", [0, 512])
def test_what_fits_or_was_sent_by_who_did_not_know_is_run(row_tokens: int) -> None:
    floor = Floor()

    begin(floor, None, row_tokens)

    assert len(floor.results()) == 1


def test_rows_that_need_more_than_it_takes_are_given_back(caplog: pytest.LogCaptureFixture) -> None:
    floor = Floor()

    begin(floor, SamplingParams(600), 10_000)

    assert floor.journal == GIVEN_BACK and not floor.decoded
    assert "rows of 602 tokens, this worker takes 512" in caplog.text


@pytest.mark.parametrize("row_tokens", [602, 200])
def test_an_answer_ends_at_the_limit_of_its_batch_whatever_the_message_says(
    row_tokens: int,
) -> None:
    floor = Floor()
    add_limit(floor.store, limits_prefix(TENANT, "batch_1", "run-1", {"generate"}), 5)
    add_limit(floor.store, limits_prefix(TENANT, "batch_1", "run-1", {"score"}), 4)

    begin(floor, SamplingParams(600), row_tokens)

    ((choice,),) = (result.choices for result in floor.results())
    assert len(choice.token_ids) == 3 and choice.finish_reason is FinishReason.LENGTH


def test_features_that_it_has_not_are_given_back(caplog: pytest.LogCaptureFixture) -> None:
    floor = Floor()

    begin(floor, WITH_GRAMMAR, 100)

    assert floor.journal == GIVEN_BACK and not floor.decoded
    assert "asks for grammar" in caplog.text


def test_where_there_is_no_other_nothing_is_given_back() -> None:
    floor = Floor()

    begin(floor, WITH_GRAMMAR, 10_000, is_sole=True)

    assert len(floor.results()) == 1

"""A Shard of a LoRA adapter goes to workers that have it, and waits where none has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from router_cases import NOW, A, B, needs, send, worker

from gristmill.adapters import Adapter
from gristmill.control.routes import models_alive
from gristmill.fleet import KnownWorker, WorkerState, lane_of
from gristmill.queues.base import BULK_LANE
from gristmill.router import ToLane, Waits, fleet_of, is_served

SUPPORT, LEGAL = (Adapter(name, Path(), name * 4) for name in ("support", "legal"))


def with_adapters(one: KnownWorker, *adapters: Adapter) -> KnownWorker:
    card = replace(one.card, adapters=tuple(adapter.label for adapter in adapters))
    if BULK_LANE in card.lanes:
        card = replace(card, lanes=(lane_of(card), BULK_LANE))
    return replace(one, beat=replace(one.beat, card=card))


PLAIN = worker(8192)
WITH_SUPPORT, WITH_BOTH = (
    with_adapters(PLAIN, SUPPORT),
    with_adapters(worker(8192), SUPPORT, LEGAL),
)


def test_it_goes_to_the_lane_of_workers_that_have_the_adapter() -> None:
    found = send(needs(model=SUPPORT.pin(A)), PLAIN, WITH_SUPPORT)

    assert isinstance(found, ToLane) and found.lane == lane_of(WITH_SUPPORT.card)
    fleet = fleet_of([PLAIN, WITH_SUPPORT], NOW)
    assert is_served(needs(model=SUPPORT.pin(A)), fleet, found.lane)
    assert not is_served(needs(model=SUPPORT.pin(A)), fleet, lane_of(PLAIN.card))


def test_rows_of_the_base_go_anywhere_and_what_all_have_to_the_mixed_lane() -> None:
    for wanted in (A, SUPPORT.pin(A)):
        found = send(needs(model=wanted), WITH_SUPPORT, WITH_BOTH)

        assert isinstance(found, ToLane) and found.lane == BULK_LANE


@pytest.mark.parametrize(
    "others", [(PLAIN,), (WITH_SUPPORT,), (with_adapters(worker(8192, model=B), LEGAL),)]
)
def test_it_waits_where_no_worker_has_it_and_says_for_which(others: tuple[KnownWorker]) -> None:
    found = send(needs(model=LEGAL.pin(A)), *others)

    assert isinstance(found, Waits) and "the model legal" in found.reason


def test_it_waits_for_one_that_was_there_and_for_one_that_loads() -> None:
    gone = replace(WITH_BOTH, heard_at=NOW - 90)
    loading = worker(0, state=WorkerState.LOADING)

    assert "last heard of 90 s ago" in str(send(needs(model=LEGAL.pin(A)), PLAIN, gone))
    assert "one is loading" in str(send(needs(model=LEGAL.pin(A)), PLAIN, loading))


def test_what_is_sent_now_is_of_models_and_adapters_that_are_alive() -> None:
    only = models_alive(fleet_of([WITH_SUPPORT], NOW))

    assert only is not None
    assert only.models == {
        (pin.revision, pin.tokenizer_hash, pin.dtype) for pin in (A, SUPPORT.pin(A))
    }

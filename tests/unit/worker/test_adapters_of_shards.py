"""A Shard of a LoRA adapter is run by a worker that has this very one, and given back by others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from floor import LEASE_S, Floor
from pipeline import PIN, make_job

from gristmill.adapters import Adapter

MINE = Adapter("mine", Path(), "0123456789abcdef0123456789abcdef")


class WatchedEngine(FakeEngine):
    """Notes the adapter of each Job."""

    def add(self, seq_id: str, job: Any, *more: Any) -> None:
        self.adapters = [*getattr(self, "adapters", []), job.adapter]
        super().add(seq_id, job, *more)


@pytest.mark.parametrize("is_sole", [False, True])
def test_each_row_runs_with_the_adapter_that_its_shard_was_made_for(is_sole: bool) -> None:
    floor = Floor()
    floor.send(0, [make_job(0)], pin=MINE.pin(PIN))
    floor.send(1, [make_job(1)])
    worker = floor.worker(engine=WatchedEngine, adapters=(MINE,), is_sole=is_sole)

    floor.run_dry(worker)

    assert sorted(floor.engine.adapters) == ["", MINE.identity]  # type: ignore[attr-defined]
    assert len(floor.results()) == 2


@pytest.mark.parametrize("adapters", [(), (replace(MINE, identity="f" * 32),)])
def test_a_worker_without_the_very_adapter_gives_the_shard_back(
    adapters: tuple[Adapter, ...], caplog: pytest.LogCaptureFixture
) -> None:
    floor = Floor()
    floor.send(0, [make_job(0)], pin=MINE.pin(PIN))
    worker = floor.worker(adapters=adapters)

    floor.turn(worker, times=10)

    assert floor.journal == [f"release bulk {LEASE_S:.0f}"] and not floor.decoded
    assert MINE.identity in caplog.text
    assert all(adapter.label in caplog.text for adapter in adapters)

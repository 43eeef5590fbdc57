"""Faults that are planted into a process, so that tests see whether the checker finds them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from gristmill.control import accept, merge
from gristmill.ledger import segments
from gristmill.local import pipeline
from gristmill_worker import attempt
from gristmill_worker.leases import LeaseKeeper
from gristmill_worker.outbox import Outbox


def acks_before_storing() -> Any:
    """What becomes of the message is decided before the last Segment lies in the Store."""
    store = Outbox.store

    def store_late(self: Outbox, attempt: Any, segment: Any, then: Any = None) -> None:
        if then is not None:
            then()
        store(self, attempt, segment)

    return patch.object(Outbox, "store", store_late)


def skips_fencing() -> Any:
    """A worker that believes in its Leases however long it was away."""
    return patch.object(LeaseKeeper, "is_safe", lambda self, lease: True)


def ignores_acceptance_order() -> Any:
    """The last Segment that holds a row decides, not the first that was accepted."""
    in_order = segments.list_with_results

    def backwards(*args: Any) -> list[Any]:
        return in_order(*args)[::-1]

    return patch.object(merge.segments, "list_with_results", backwards)


def reuses_an_attempt_id() -> Any:
    """Attempts are counted instead of named at random, and each process begins at 1."""
    numbers = itertools.count(1)
    counted = SimpleNamespace(token_hex=lambda size: f"{next(numbers):016x}")
    return patch.object(attempt, "secrets", counted)


def accepts_after_the_freeze() -> Any:
    """Results count whatever the state of the batch, and some come between freeze and merge."""
    finalize = pipeline.finalize

    def accept_any(control: Any, tenant_id: str, batch_id: str, bells: Any, **_: Any) -> int:
        found = [accept.read_segment(control.store, bell) for bell in bells]
        with control.ledger.write() as conn:
            batch = accept.batches.get(conn, tenant_id, batch_id, for_update=True)
            assert batch is not None
            whole = [segment for segment in found if segment is not None]
            return accept.apply(control, conn, batch, whole).num_rows

    def finalize_late(control: Any, tenant_id: str, batch_id: str, **rest: Any) -> bool:
        before = pipeline.read_batch(control, tenant_id, batch_id).last_accepted
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at:
            accept.take_bells(control, wait_s=0.1)
            if pipeline.read_batch(control, tenant_id, batch_id).last_accepted > before:
                break
        return finalize(control, tenant_id, batch_id, **rest)

    both = ExitStack()
    both.enter_context(patch.object(accept, "_accept_of_batch", accept_any))
    both.enter_context(patch.object(pipeline, "finalize", finalize_late))
    return both


#: By name, and the side on which each one is planted.
FAULTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "acks before storing": ("worker", acks_before_storing),
    "skips fencing": ("worker", skips_fencing),
    "ignores acceptance order": ("control", ignores_acceptance_order),
    "reuses an attempt id": ("worker", reuses_an_attempt_id),
    "accepts after the freeze": ("control", accepts_after_the_freeze),
}


def plant(name: str) -> AbstractContextManager[Any]:
    return FAULTS[name][1]() if name else nullcontext()

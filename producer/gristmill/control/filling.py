"""Fills the window of one Lane, in one transaction: whose Shard is next there, and that it is sent.

Whose turn it is among tenants is told; turns are of the whole fleet (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.control.budget import budget_of, expected_usage, tokens_left
from gristmill.control.fair_share import Demand, FairShare, is_hopeless
from gristmill.control.limits import RowLimits
from gristmill.control.routes import Routes
from gristmill.ledger import shards, turns
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.queues.base import BULK_LANE
from gristmill.router import ToLane

#: Batches in front that are looked at beyond those that fill the window: some are held back.
_MORE_BATCHES = 16

Sent = tuple[Batch, ShardRow, ToLane]


class Filling:
    """`speeds` is what workers accomplish, by model."""

    def __init__(
        self,
        control: Control,
        conn: Connection,
        routes: Routes,
        fair_share: FairShare,
        *,
        lane: str,
        urgent_until: int | None,
        speeds: Mapping[str, float],
    ) -> None:
        self._control = control
        self._conn = conn
        self._routes = routes
        self._turns = fair_share
        self._lane = lane
        self._only = routes.find_for(lane)
        self._speeds = speeds
        self._limits = RowLimits(control, conn, routes.fleet, worked_for=speeds)
        self._max_batches = routes.room[lane] + _MORE_BATCHES
        #: By tenant, what is to be sent next; read when it is its turn.
        self._waiting: dict[str, Iterator[Sent]] = {}
        #: Tenants with nothing, or nothing left, to be sent here; those that have are read once.
        self._done: set[str] = set()
        self._tenants = None if routes.is_mixed else frozenset(fair_share.order())
        self._urgent = self._mark_urgent(urgent_until)

    def next_urgent(self) -> Sent | None:
        """The next Shard of work that goes in the order of deadlines."""
        return next(self._urgent, None)

    def next_in_turn(self) -> Sent | None:
        """The next Shard of the tenant whose turn it is."""
        if not self._is_wanted():
            return None
        if self._tenants is None:
            self._tenants = frozenset(turns.list_tenants(self._conn, BULK_LANE, self._only))
        for tenant_id in self._turns.order():
            if tenant_id in self._done or tenant_id not in self._tenants:
                continue
            if tenant_id not in self._waiting:
                self._waiting[tenant_id] = self._mark(self._next_batches(tenant_id))
            marked = next(self._waiting[tenant_id], None)
            if marked is not None:
                return marked
            self._done.add(tenant_id)
        return None

    def _is_wanted(self) -> bool:
        """Whether anything that waits would go here as things are now."""
        if not self._routes.is_mixed:
            return True
        only = self._routes.find_for(self._lane)
        return only is not None and bool(only.models)

    def _next_batches(self, tenant_id: str) -> Iterator[Batch]:
        """Mostly the first one has Shards enough; the others are read when it has not."""
        seen: set[str] = set()
        for limit in (1, self._max_batches):
            for batch in turns.list_next(self._conn, tenant_id, limit=limit, only=self._only):
                if batch.id not in seen:
                    seen.add(batch.id)
                    yield batch

    def _mark_urgent(self, until: int | None) -> Iterator[Sent]:
        if until is None:
            return
        found = turns.list_due_until(self._conn, until, limit=self._max_batches, only=self._only)
        now = self._control.now
        yield from self._mark(
            batch
            for batch in found
            if batch.due_at > now
            and not is_hopeless(
                _demand(batch), now=now, tokens_per_s=self._speeds.get(batch.model.name, 0.0)
            )
        )

    def _mark(self, found: Iterable[Batch]) -> Iterator[Sent]:
        """Shard by Shard, those of the first batch first."""
        now = self._control.now
        ring_at = now + int(self._control.settings.resend_after_s)
        for batch in found:
            if not self._is_wanted():
                return
            most = self._limits.most_for(batch)
            for shard, to in self._routes.next_of(batch, self._lane, self._only, most=most):
                if self._is_held_back(batch):
                    break
                if self._limits.is_too_long(batch, shard):
                    continue
                row_tokens = self._limits.within(batch, shard, to.row_tokens)
                if row_tokens is not None and shards.mark_sent(
                    self._conn, shard, now=now, ring_at=ring_at, lane=to.lane
                ):
                    self._routes.take(batch, shard, to.lane)
                    yield batch, replace(shard, ring_at=ring_at), replace(to, row_tokens=row_tokens)

    def _is_held_back(self, batch: Batch) -> bool:
        """Whether the Shards under way are expected to use up the batch's budget."""
        budget = budget_of(batch)
        if not budget.is_limited:
            return False
        under_way = shards.list_sent(self._conn, batch.tenant_id, batch.id)
        expected = expected_usage(batch, under_way)
        return bool(under_way) and budget.is_used_up(batch.usage + expected)


def _demand(batch: Batch) -> Demand:
    used = batch.usage.prompt_tokens + batch.usage.completion_tokens
    left = tokens_left(
        expected_tokens=batch.expected_tokens,
        total=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        used_tokens=used,
    )
    return Demand(batch.due_at, left)

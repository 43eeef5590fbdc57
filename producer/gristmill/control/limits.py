"""Decides where answers of a batch end that may be longer than any machine takes (row_limits.py).

A limit is decided when the first Shard that needs it is sent. It is in the Store before any worker
hears of it, and from then on the Ledger has Shards need no more.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import replace

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.control.routes import needs_of_shard
from gristmill.fleet import ModelKey
from gristmill.ledger import routed, size_classes, workers
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.loading import NO_LIMIT
from gristmill.needs import features_in
from gristmill.pools import Fleet, Needs, fleet_of
from gristmill.router import find_certain, taken_row_tokens
from gristmill.row_limits import add_limit, limit_of, read_limits
from gristmill.stores.keys import limits_prefix

log = logging.getLogger(__name__)


class RowLimits:
    """Those of one round of dispatch, in its transaction. `fleet` is as that round sees it."""

    def __init__(
        self,
        control: Control,
        conn: Connection,
        fleet: Fleet,
        *,
        worked_for: Container[str] = (),
    ) -> None:
        """`worked_for`: models that workers do work of, whether they say what they are or not."""
        self._control = control
        self._store = control.store
        self._is_sole = control.fleet_view.is_sole
        self._conn = conn
        self._fleet = fleet
        self._newest: Fleet | None = None
        self._worked_for = worked_for
        #: By model, what is certain, and whether a Shard with longer rows may be sent.
        self._most: dict[ModelKey, tuple[int, bool]] = {}
        #: By prefix in the Store, and those of them that the Ledger knows.
        self._limits: dict[str, list[int]] = {}
        self._lowered: set[tuple[str, int]] = set()

    def within(self, batch: Batch, shard: ShardRow, row_tokens: int) -> int | None:
        """What a worker must take to run it, `row_tokens` by the Router. A Shard with longer rows
        ends them at their limit; not one whose prompts are too long for all, which waits for
        another machine.

        None while this round does not know of all machines: a later one sends the Shard.
        """
        if row_tokens >= shard.max_row_tokens:
            return row_tokens
        needs = needs_of_shard(batch.model, shard)
        most = taken_row_tokens(replace(needs, least_row_tokens=0), self._fleet)
        if most < shard.least_row_tokens:
            return row_tokens
        features = features_in(shard.size_class)
        prefix = limits_prefix(batch.tenant_id, batch.id, batch.run_id, features)
        if prefix not in self._limits:
            self._limits[prefix] = read_limits(self._store, prefix)
        limit = limit_of(shard.least_row_tokens, self._limits[prefix])
        if limit is None or limit > row_tokens:
            if self._takes_more(needs, row_tokens):
                return None
            limit = row_tokens
            add_limit(self._store, prefix, limit)
            self._limits[prefix].append(limit)
            log.info("row limit batch=%s features=%s tokens=%d", batch.id, sorted(features), limit)
        if (prefix, limit) not in self._lowered:
            self._lower(batch, features, limit)
            self._lowered.add((prefix, limit))
        return limit

    def most_for(self, batch: Batch) -> int:
        """The longest rows that may be sent now. While nobody has told what machines of a model
        take, one Shard with longer ones is out to find that out, and more would stand in the way of
        all shorter ones."""
        if self._is_sole or batch.model.name in self._worked_for:
            return NO_LIMIT
        key = batch.model.key
        if key not in self._most:
            certain = find_certain(Needs(batch.model), self._fleet)
            is_free = certain == NO_LIMIT or not routed.list_sent_longer(
                self._conn, batch.model, certain, limit=1
            )
            self._most[key] = certain, is_free
        certain, is_free = self._most[key]
        return NO_LIMIT if is_free else certain

    def is_too_long(self, batch: Batch, shard: ShardRow) -> bool:
        """Whether a Shard may not be sent, which otherwise will be."""
        if shard.max_row_tokens > self.most_for(batch):
            return True
        key = batch.model.key
        if key in self._most and shard.max_row_tokens > self._most[key][0]:
            self._most[key] = self._most[key][0], False
        return False

    def _takes_more(self, needs: Needs, row_tokens: int) -> bool:
        """Whether a machine has been heard of since this round has read the fleet: another process
        may have made a limit for it, or needs none."""
        if self._newest is None:
            most = self._control.settings.fleet_max_row_tokens
            fleet = fleet_of(workers.list_workers(self._conn), self._control.clock())
            self._newest = replace(fleet, max_row_tokens=most)
        return taken_row_tokens(needs, self._newest) > row_tokens

    def _lower(self, batch: Batch, features: frozenset[str], limit: int) -> None:
        for one in size_classes.list_of_batch(self._conn, batch.tenant_id, batch.id):
            if one.max_row_tokens > limit and features_in(one.size_class) == features:
                routed.limit_rows(self._conn, one, limit)
                size_classes.lower(self._conn, one)

"""Decides where answers of a batch end that may be longer than any machine takes (row_limits.py).

A limit is decided when the first Shard that needs it is sent. It is in the Store before any worker
hears of it, and from then on the Ledger has Shards need no more.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.control.routes import needs_of_shard
from gristmill.fleet import SMALLEST_ROW_CLASS
from gristmill.ledger import routed, size_classes
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import ShardRow
from gristmill.needs import features_in
from gristmill.pools import Fleet
from gristmill.router import ToLane, is_uncertain
from gristmill.row_limits import add_limit, limit_of, read_limits
from gristmill.stores.keys import limits_prefix

log = logging.getLogger(__name__)


class RowLimits:
    """Those of one round of dispatch, in its transaction. `fleet` is as that round sees it."""

    def __init__(self, control: Control, conn: Connection, fleet: Fleet) -> None:
        self._store = control.store
        self._is_sole = control.fleet_view.is_sole
        self._conn = conn
        self._fleet = fleet
        #: By prefix in the Store, and those of them that the Ledger knows.
        self._limits: dict[str, list[int]] = {}
        self._lowered: set[tuple[str, int]] = set()

    def within(self, batch: Batch, shard: ShardRow, to: ToLane) -> ToLane:
        """A Shard that has rows of more than a worker must take there ends them at their limit."""
        if to.row_tokens >= shard.max_row_tokens:
            return to
        features = features_in(shard.size_class)
        prefix = limits_prefix(batch.tenant_id, batch.id, batch.run_id, features)
        if prefix not in self._limits:
            self._limits[prefix] = read_limits(self._store, prefix)
        limit = limit_of(shard.least_row_tokens, self._limits[prefix])
        if limit is None or limit > to.row_tokens:
            limit = to.row_tokens
            add_limit(self._store, prefix, limit)
            self._limits[prefix].append(limit)
            log.info("row limit batch=%s features=%s tokens=%d", batch.id, sorted(features), limit)
        if (prefix, limit) not in self._lowered:
            self._lower(batch, features, limit)
            self._lowered.add((prefix, limit))
        return replace(to, row_tokens=limit)

    def is_too_early(self, batch: Batch, shard: ShardRow, *, is_worked_for: bool) -> bool:
        """Whether a Shard may be too long for whoever comes first, and another one of the model is
        out already to find that out. More of them would stand in the way of all shorter ones.

        `is_worked_for`: workers of the model are there, whether they say what they are or not.
        """
        if self._is_sole or is_worked_for:
            return False
        if not is_uncertain(needs_of_shard(batch.model, shard), self._fleet):
            return False
        longer = routed.list_sent_longer(self._conn, batch.model, SMALLEST_ROW_CLASS, limit=1)
        return bool(longer)

    def _lower(self, batch: Batch, features: frozenset[str], limit: int) -> None:
        for one in size_classes.list_of_batch(self._conn, batch.tenant_id, batch.id):
            if one.max_row_tokens > limit and features_in(one.size_class) == features:
                routed.limit_rows(self._conn, one, limit)
                size_classes.lower(self._conn, one)

"""Reads what a batch cannot end without; what the Store has lost is told, with the way out.

`stores/segments.py` reads what may be missing.
"""

from __future__ import annotations

from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger.batch import Batch
from gristmill.stores.base import Store
from gristmill.stores.keys import segment_key, shard_key
from gristmill.stores.segments import read_segment
from gristmill.types import Bell, Segment, Shard
from gristmill.wire import decode_shard


def read_shard(store: Store, batch: Batch, n: int, *, for_lines: bool = False) -> Shard:
    """Of a Job that has its result; `for_lines` as for `decode_shard`. Raises CorruptDocument."""
    key = shard_key(batch.tenant_id, batch.id, batch.run_id, n)
    try:
        return decode_shard(store.get(key), for_lines=for_lines)
    except KeyNotFound as error:
        raise CorruptDocument(
            f"The Shard {key} is no longer there: the store has lost it. Restore it from a copy, "
            "or run the batch again."
        ) from error


def read_accepted(store: Store, bell: Bell) -> Segment:
    """A Segment that counts. Raises CorruptDocument."""
    segment = read_segment(store, bell)
    if segment is None:
        raise CorruptDocument(
            f"The Segment {segment_key(bell)} was accepted and can no longer be read: the "
            "store has lost or damaged it. Restore it from a copy, or run the batch again."
        )
    return segment

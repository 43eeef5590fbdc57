"""What the Ledger has to know of the Shards of a batch, read out of the Store."""

from __future__ import annotations

from gristmill.control.accept import INGEST_ATTEMPT
from gristmill.control.ingest import new_shard
from gristmill.control.ingested import Ingested
from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger.batch import Batch
from gristmill.ledger.shards import NewShard
from gristmill.stores.base import Store
from gristmill.stores.keys import shard_key
from gristmill.stores.segments import read_segment
from gristmill.types import Bell
from gristmill.wire import decode_shard


def read_slices(store: Store, batch: Batch, ingested: Ingested) -> list[list[NewShard]]:
    """The Shards of each slice, as ingest has cut them. Raises CorruptDocument."""
    slices: list[list[NewShard]] = []
    n = 0
    for num_shards in ingested.shards_of_slices:
        slices.append([_read_shard(store, batch, n + i) for i in range(num_shards)])
        n += num_shards
    num_rows = sum(shard.num_rows for of_slice in slices for shard in of_slice)
    if num_rows != ingested.total:
        raise CorruptDocument(
            f"The Shards of {batch.id} hold {num_rows} rows, and {ingested.total} were read: the "
            "store has lost some. Restore them from a copy."
        )
    return slices


def _read_shard(store: Store, batch: Batch, n: int) -> NewShard:
    try:
        shard = decode_shard(store.get(shard_key(batch.tenant_id, batch.id, batch.run_id, n)))
    except KeyNotFound:
        return _read_refused(store, batch, n)
    return new_shard(shard)


def _read_refused(store: Store, batch: Batch, n: int) -> NewShard:
    """A Shard without Jobs, of rows that ingest has refused: its Segment is all there is of it."""
    bell = Bell(batch.tenant_id, batch.id, batch.run_id, n, INGEST_ATTEMPT, 0)
    segment = read_segment(store, bell)
    if segment is None:
        raise CorruptDocument(
            f"The store has lost Shard {n} of {batch.id}. Restore it from a copy."
        )
    return NewShard(n, len(segment.results), len(segment.results), 0)

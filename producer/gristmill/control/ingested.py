"""What the Store remembers once all rows of a batch lie in Shards: which, and how they are cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.control.base import Control, read_batch
from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger import shards
from gristmill.ledger.batch import Batch
from gristmill.stores.base import Store
from gristmill.stores.keys import ingested_key
from gristmill.types import Endpoint, ModelPin

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Ingested:
    """`shards_of_slices`: how many Shards each slice has, in their order."""

    endpoint: Endpoint
    model: ModelPin
    options: Mapping[str, Any]
    total: int
    shards_of_slices: tuple[int, ...]


def write_ingested(control: Control, batch: Batch) -> None:
    """Before the batch is in progress. Two that ingest it write the same."""
    batch = read_batch(control, batch.tenant_id, batch.id)
    if batch.endpoint is None:
        return
    with control.ledger.read() as conn:
        counts = shards.count_by_slice(conn, batch.tenant_id, batch.id, batch.num_slices)
    document = {
        "format": _FORMAT,
        "batch_id": batch.id,
        "run_id": batch.run_id,
        "endpoint": batch.endpoint,
        "model": asdict(batch.model),
        "options": dict(batch.options),
        "total": batch.total,
        "shards_of_slices": counts,
    }
    key = ingested_key(batch.tenant_id, batch.id, batch.run_id)
    control.store.put(key, json.dumps(document, sort_keys=True).encode())


def read_ingested(store: Store, tenant_id: str, batch_id: str, run_id: str) -> Ingested | None:
    """None when not all of the input was read. Raises CorruptDocument."""
    key = ingested_key(tenant_id, batch_id, run_id)
    try:
        document = json.loads(store.get(key))
        if document["format"] != _FORMAT:
            raise CorruptDocument(f"{key} has a format that this version does not know.")
        return Ingested(
            Endpoint(document["endpoint"]),
            ModelPin(**document["model"]),
            document["options"],
            document["total"],
            tuple(document["shards_of_slices"]),
        )
    except KeyNotFound:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDocument(f"{key} cannot be read: {error}") from error

"""What the Store remembers of a batch that has ended, and how long its work is kept."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.control.base import Control
from gristmill.errors import CorruptDocument, KeyNotFound
from gristmill.ledger import files, life
from gristmill.ledger.batch import Batch
from gristmill.ledger.files import File
from gristmill.stores.base import Store
from gristmill.stores.keys import end_key

_FORMAT = 1


def remove_work_at(control: Control, batch: Batch) -> int | None:
    """When Shards and Segments of a batch that ends now are removed, in Unix seconds.

    None for one of `gristmill run`, whose work folder is its own business.
    """
    if batch.input_file_id is None:
        return None
    return control.now + control.settings.work_lifetime_s


def write_end(control: Control, tenant_id: str, batch_id: str) -> None:
    """The rows of an ended batch and of its files go to the Store. Harmless when repeated."""
    with control.ledger.read() as conn:
        row = life.read_row(conn, tenant_id, batch_id)
        assert row is not None, "a batch that has ended is there"
        ids = [row[f"{which}_file_id"] for which in ("output", "error")]
        found = [files.get(conn, tenant_id, file_id) for file_id in ids if file_id is not None]
    # When it is removed the Store need not know: whoever reads this finds out what is left.
    document = {
        "format": _FORMAT,
        "batch": row | {"remove_work_at": None},
        "files": [asdict(file) for file in found if file is not None],
    }
    body = json.dumps(document, indent=1).encode()
    control.store.create(end_key(tenant_id, batch_id), body)


@dataclass(frozen=True, slots=True)
class End:
    """The Ledger's row of a batch at its end, and its result files."""

    row: dict[str, Any]
    files: tuple[File, ...]


def read_end(store: Store, tenant_id: str, batch_id: str) -> End | None:
    """What `write_end` wrote; None when the batch had no end yet. Raises CorruptDocument."""
    key = end_key(tenant_id, batch_id)
    try:
        document = json.loads(store.get(key))
        if document["format"] != _FORMAT:
            raise CorruptDocument(f"{key} has a format that this version does not know.")
        return End(document["batch"], tuple(File(**file) for file in document["files"]))
    except KeyNotFound:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDocument(f"{key} cannot be read: {error}") from error

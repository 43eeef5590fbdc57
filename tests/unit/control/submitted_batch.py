"""The batch of mixed_batch.py as a caller of the API submits it: of a file, with a window."""

from __future__ import annotations

from mixed_batch import WINDOWS
from pipeline import PIN, TENANT, Bench

from gristmill.control.submit import submit
from gristmill.ledger import batches, files
from gristmill.ledger.batch import Submission
from gristmill.ledger.files import File
from gristmill.stores.keys import file_key
from gristmill.types import Endpoint

BODY = b"what the windows are read from"


def submit_batch(bench: Bench, *, file_id: str = "file-1") -> None:
    """From now on it is the batch of the bench."""
    bench.store.put(file_key(TENANT, file_id), BODY)
    now = int(bench.clock())
    with bench.ledger.write() as conn:
        if files.get(conn, TENANT, file_id) is None:
            files.add(conn, File(file_id, TENANT, "batch", "in.jsonl", len(BODY), now, now + 9**9))
    made, _ = submit(
        bench.ledger,
        bench.store,
        bench.settings,
        TENANT,
        Submission(Endpoint.CHAT, file_id, "24h", metadata={"a": "b"}),
        now_s=bench.clock(),
        window_s=24 * 3600,
        resent_since=None,
    )
    bench.batch_id = made.id


def read_all(bench: Bench) -> None:
    with bench.ledger.write() as conn:
        batches.pin_model(conn, bench.batch, model=PIN, options={})
    bench.ingest(WINDOWS)

"""Puts the result files of a batch where the caller wants them, as often as it is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gristmill.errors import StoreError
from gristmill.ledger.batch import Batch
from gristmill.local.values import RunConfig
from gristmill.local.work_folder import TENANT_ID
from gristmill.stores.base import Store
from gristmill.stores.keys import file_key
from gristmill.stores.local import write_atomically

_CHUNK_BYTES = 1 << 20


def publish(store: Store, batch: Batch, config: RunConfig) -> None:
    """Raises StoreError when a file cannot be written; what the store holds stays there."""
    try:
        if batch.error_file_id is None:
            # One of an earlier run would be taken for this one's.
            config.errors_path.unlink(missing_ok=True)
        else:
            _copy(store, batch.error_file_id, config.errors_path)
        _copy(store, batch.output_file_id, config.output_path)
    except OSError as error:
        raise StoreError(
            f"{error.filename2 or error.filename or config.output_path} could not be written: "
            f"{error.strerror or error}. The answers are kept in {config.work_dir}: "
            "put that right, and run the same command again."
        ) from error


def _copy(store: Store, file_id: str | None, path: Path) -> None:
    """The file as a whole or not at all; an empty one when the batch has none."""

    def chunks() -> Iterator[bytes]:
        if file_id is not None:
            with store.open(file_key(TENANT_ID, file_id)) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk

    write_atomically(path, chunks())

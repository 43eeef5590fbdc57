"""Files that lie in the Store and are not in the Ledger, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gristmill.control.base import Control
from gristmill.control.lines import derived_id
from gristmill.errors import KeyNotFound
from gristmill.ledger import files, restore, tenants
from gristmill.ledger.files import File
from gristmill.ledger.ids import created_at_of
from gristmill.stores.keys import file_key

_FILES_AT_ONCE = 500


def rebuild_files(control: Control, of_batches: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """How many uploads were found in the Store, and how many the Store has no more.

    Of an upload the Store has nothing but its bytes: its name is made up, it expires when it would
    by default. Result files come with the end of their batch.
    """
    results = {
        derived_id("file-", tenant_id, batch_id, which)
        for tenant_id, batch_id in of_batches
        for which in ("output", "error")
    }
    num_found = num_lost = 0
    for tenant_id, file_id in _stored(control):
        if file_id not in results:
            num_found += _put_upload(control, tenant_id, file_id)
    for file in _known(control):
        if not is_stored(control, file.tenant_id, file.id):
            with control.ledger.write() as conn:
                files.delete(conn, file.tenant_id, file.id, now=control.now)
            num_lost += 1
    return num_found, num_lost


def is_stored(control: Control, tenant_id: str, file_id: str) -> bool:
    try:
        control.store.size(file_key(tenant_id, file_id))
    except KeyNotFound:
        return False
    return True


def _stored(control: Control) -> Iterator[tuple[str, str]]:
    for key in control.store.list("t/"):
        match key.split("/"):
            case ["t", tenant_id, "files", file_id]:
                yield tenant_id, file_id


def _put_upload(control: Control, tenant_id: str, file_id: str) -> bool:
    created_at = min(created_at_of(file_id) or control.now, control.now)
    file = File(
        id=file_id,
        tenant_id=tenant_id,
        purpose="batch",
        filename=f"{file_id}.jsonl",
        num_bytes=control.store.size(file_key(tenant_id, file_id)),
        created_at=created_at,
        expires_at=created_at + control.settings.file_lifetime_s,
    )
    with control.ledger.write() as conn:
        tenants.ensure(conn, tenant_id, now=control.now)
        return restore.put_file(conn, file)


def _known(control: Control) -> Iterator[File]:
    after_id = ""
    while True:
        with control.ledger.read() as conn:
            page = restore.list_files(conn, after_id=after_id, limit=_FILES_AT_ONCE)
        if not page:
            return
        yield from page
        after_id = page[-1].id

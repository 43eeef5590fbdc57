"""/v1/batches/{id}, behind its end: run again what has no answer, or delete it."""

from __future__ import annotations

import logging

from fastapi import APIRouter

from gristmill.api.batches import find_batch
from gristmill.api.context import BatchesWriter, UseApi
from gristmill.api.failures import ApiError, refused
from gristmill.api.objects import BatchDeleted, BatchObject, batch_object
from gristmill.control.removal import WRITE_GRACE_S
from gristmill.control.retry import BatchNotEnded, NothingToRetry, retry
from gristmill.ledger import life
from gristmill.stores.keys import batch_key

log = logging.getLogger(__name__)
router = APIRouter(prefix="/v1/batches", tags=["Batches"])


@router.post("/{batch_id}/retry")
def retry_batch(batch_id: str, api: UseApi, caller: BatchesWriter) -> BatchObject:
    """Make a batch of the rows that failed or were never run, with `retry_of` and the same seed.

    The same request again gives the same batch. What fails there too, a retry of that one runs.
    """
    batch = find_batch(api, caller.tenant_id, batch_id)
    try:
        made, is_new = retry(
            *(api.ledger, api.store, api.settings, batch),
            now_s=api.clock(),
            traceparent=api.telemetry.tracer.current(),
        )
    except BatchNotEnded as error:
        raise _not_ended(str(error)) from error
    except NothingToRetry as error:
        raise refused(str(error), param="batch_id", code="nothing_to_retry") from error
    if is_new:
        log.info(
            "batch retried tenant=%s batch=%s retry=%s key=%s",
            *(batch.tenant_id, batch.id, made.id, caller.key_id),
        )
        api.on_submitted()
    return batch_object(made, api.outlook)


@router.delete("/{batch_id}")
def delete_batch(batch_id: str, api: UseApi, caller: BatchesWriter) -> BatchDeleted:
    """Forget a batch that has ended. Its files stay until they are deleted or expire."""
    batch = find_batch(api, caller.tenant_id, batch_id)
    with api.ledger.write() as conn:
        is_hidden = life.hide(
            conn, batch.tenant_id, batch.id, now=api.now, remove_work_at=api.now + WRITE_GRACE_S
        )
    if not is_hidden:
        # It may just have been deleted by another request, which is a 404.
        batch = find_batch(api, caller.tenant_id, batch_id)
        raise _not_ended(f"The batch is {batch.status.value}. Wait for its end, or cancel it.")
    # What a lost Ledger would be rebuilt from; the sweep takes the rest.
    api.store.delete(batch_key(batch.tenant_id, batch.id))
    log.info("batch deleted tenant=%s batch=%s key=%s", batch.tenant_id, batch.id, caller.key_id)
    return BatchDeleted(id=batch.id)


def _not_ended(message: str) -> ApiError:
    """Not worth another try in a moment, which the official client would make of a 409."""
    return ApiError(
        409,
        message,
        code="batch_not_ended",
        param="batch_id",
        headers={"x-should-retry": "false"},
    )

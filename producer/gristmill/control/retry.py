"""Runs again what an ended batch left unanswered: a new batch of those rows, with the same seed."""

from __future__ import annotations

from dataclasses import fields, replace

from gristmill.control.submit import InputFileMissing, submit
from gristmill.errors import UsageError
from gristmill.ledger.batch import Batch, Submission
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.status import OPEN, BatchStatus
from gristmill.settings import Settings
from gristmill.stores.base import Store


class BatchNotEnded(UsageError):
    """What was asked for has to wait for the end of the batch."""


class NothingToRetry(UsageError):
    """The batch has no row that could run again."""


def retry(
    ledger: Ledger,
    store: Store,
    settings: Settings,
    batch: Batch,
    *,
    now_s: float,
    traceparent: str = "",
) -> tuple[Batch, bool]:
    """The batch that runs the failed and missing rows of `batch`, and whether it is new.

    It asks for what `batch` asked for, and copies its seed: a row that brings no seed of its own
    draws as it would have drawn there. Both files, of the requests and of the failures, have to
    be there until it is in progress. Raises BatchNotEnded and NothingToRetry.
    """
    if batch.status in OPEN:
        raise BatchNotEnded(
            f"The batch is {batch.status.value}. Wait for its end, or cancel it, and then retry it."
        )
    if batch.status is BatchStatus.FAILED:
        raise NothingToRetry(
            "The batch failed validation, so none of its rows was due. Mend the lines that its "
            "`errors` name, and create a batch of the new file."
        )
    if batch.error_file_id is None and batch.in_progress_at is not None:
        raise NothingToRetry("Every row of the batch has its answer. There is nothing to retry.")
    assert batch.expires_at is not None, "a batch of the API has a completion window"
    same = Submission(**{field.name: getattr(batch, field.name) for field in fields(Submission)})
    submission = replace(
        same,
        idempotency_key=None,
        request_digest=None,
        retry_of=batch.id,
        # One that ended before its input was read has not even counted its rows: all of them.
        retry_file_id=batch.error_file_id or batch.retry_file_id,
    )
    try:
        return submit(
            ledger,
            store,
            settings,
            batch.tenant_id,
            submission,
            now_s=now_s,
            window_s=batch.expires_at - batch.created_at,
            resent_since=None,
            seed=batch.seed,
            traceparent=traceparent,
        )
    except InputFileMissing as error:
        raise NothingToRetry(
            f"{error} A retry needs the file of the requests and that of the failures. Create a "
            "batch of a new file."
        ) from error

"""Makes a batch of an uploaded file, once, however often the same request arrives."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from gristmill import crash_points
from gristmill.control.room import check_room_for_batch
from gristmill.errors import UsageError
from gristmill.ledger import batches, files, life, submissions, webhooks
from gristmill.ledger.batch import TRACEPARENT, Batch, Submission
from gristmill.ledger.ids import new_id
from gristmill.ledger.ledger import Ledger
from gristmill.ledger.webhooks import WebhookEndpoint
from gristmill.quotas import QuotaExceeded
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill.stores.keys import batch_key
from gristmill.types import ModelPin

#: Until ingest has read which model the lines name.
UNDECIDED = ModelPin("", "", "", "")
#: Settings that decide what lies in which Shard. They are kept with the batch, so that an ingest
#: that is repeated or goes on elsewhere writes the same bytes under the same keys.
SHARD_SETTINGS = ("shard_max_jobs", "shard_max_tokens")


class InputFileMissing(UsageError):
    """The tenant has no such file, or no longer."""


class InputFileUnusable(UsageError):
    """The file is no input of a batch."""


def submit(
    ledger: Ledger,
    store: Store,
    settings: Settings,
    tenant_id: str,
    submission: Submission,
    *,
    now_s: float,
    window_s: int,
    resent_since: int | None,
    seed: str | None = None,
    webhook: WebhookEndpoint | None = None,
    traceparent: str = "",
) -> tuple[Batch, bool]:
    """The batch of a submission, and whether it is new. Its description is in the Store first.

    One with the same idempotency key, the same request since `resent_since`, or that runs the
    same rows again, is not new. The seed is the batch's own id, unless another one is given.
    `webhook` is to hear of it. What is done for it hangs on `traceparent`. Raises
    InputFileMissing, InputFileUnusable and QuotaExceeded.
    """
    with ledger.read() as conn:
        found = _find(conn, tenant_id, submission, resent_since=resent_since)
        if found is not None:
            return found, False
        _check_file(conn, tenant_id, submission, now=int(now_s), for_update=False)
        check_room_for_batch(conn, settings, tenant_id)
    batch_id, run_id = new_id("batch_", now_s), f"run-{secrets.token_hex(8)}"
    options = {name: getattr(settings, name) for name in SHARD_SETTINGS}
    if traceparent:
        options[TRACEPARENT] = traceparent
    created_at, expires_at = int(now_s), int(now_s) + window_s
    description: dict[str, Any] = {
        "format": 1,
        "id": batch_id,
        "tenant_id": tenant_id,
        "run_id": run_id,
        "seed": seed or batch_id,
        "options": options,
        "created_at": created_at,
        "expires_at": expires_at,
        **asdict(submission),
    }
    store.put(batch_key(tenant_id, batch_id), json.dumps(description, indent=1).encode())
    crash_points.at("batch-described", batch=batch_id)
    try:
        with ledger.write() as conn:
            # Held: two of the same request come one after the other, and the file stays.
            _check_file(conn, tenant_id, submission, now=created_at, for_update=True)
            found = _find(conn, tenant_id, submission, resent_since=resent_since)
            if found is None:
                check_room_for_batch(conn, settings, tenant_id, for_update=True)
                batches.create(
                    conn,
                    tenant_id,
                    batch_id,
                    run_id=run_id,
                    model=UNDECIDED,
                    seed=seed or batch_id,
                    input_fingerprint=submission.input_file_id,
                    options=options,
                    created_at=created_at,
                    expires_at=expires_at,
                    submission=submission,
                )
                if webhook is not None:
                    webhooks.add(conn, replace(webhook, batch_id=batch_id))
                elif submission.retry_of is not None:
                    webhooks.inherit(
                        conn,
                        tenant_id,
                        batch_id,
                        from_batch=submission.retry_of,
                        new_id=new_id("we_", now_s),
                        now=created_at,
                    )
    except QuotaExceeded:
        store.delete(batch_key(tenant_id, batch_id))
        raise
    except IntegrityError:  # another request with this idempotency key, of another file
        with ledger.read() as conn:
            found = _find(conn, tenant_id, submission, resent_since=resent_since)
        if found is None:
            raise
    if found is not None:
        store.delete(batch_key(tenant_id, batch_id))
        return found, False
    with ledger.read() as conn:
        made = batches.get(conn, tenant_id, batch_id)
    assert made is not None, "a batch that was just made is there"
    return made, True


def _find(
    conn: Connection, tenant_id: str, submission: Submission, *, resent_since: int | None
) -> Batch | None:
    key, digest = submission.idempotency_key, submission.request_digest
    if submission.retry_of is not None:
        return life.find_retry(conn, tenant_id, submission.retry_of)
    if key is not None:
        return submissions.find_by_idempotency_key(conn, tenant_id, key)
    if resent_since is not None and digest is not None:
        return submissions.find_recent(conn, tenant_id, digest, since=resent_since)
    return None


def _check_file(
    conn: Connection, tenant_id: str, submission: Submission, *, now: int, for_update: bool
) -> None:
    file_id = submission.input_file_id
    file = None
    if "\0" not in file_id:
        file = files.get(conn, tenant_id, file_id, now=now, for_update=for_update)
    if file is None:
        raise InputFileMissing(f"There is no file {file_id[:80]!a}.")
    if file.purpose != "batch":
        raise InputFileUnusable(
            f"The file {file_id} has the purpose {file.purpose!r}. Upload the requests with the "
            "purpose 'batch'."
        )
    names = submission.retry_file_id
    if names is not None and files.get(conn, tenant_id, names, now=now) is None:
        raise InputFileMissing(f"There is no file {names}.")

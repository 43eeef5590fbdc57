"""Whether a tenant's quotas leave room for one more batch, file or window of rows."""

from __future__ import annotations

from sqlalchemy import Connection

from gristmill.control.base import Control
from gristmill.errors import BatchInvalid, LineError
from gristmill.ledger import quotas
from gristmill.ledger.batch import Batch
from gristmill.quotas import QuotaExceeded, Quotas, quotas_of
from gristmill.settings import Settings


def tenant_quotas(
    conn: Connection, settings: Settings, tenant_id: str, *, for_update: bool = False
) -> Quotas:
    """With `for_update` nobody else counts for this tenant until the transaction ends."""
    return quotas_of(settings, quotas.find_own(conn, tenant_id, for_update=for_update))


def check_room_for_batch(
    conn: Connection, settings: Settings, tenant_id: str, *, for_update: bool = False
) -> None:
    """Raises QuotaExceeded. How large the batch itself is, ingest will see."""
    of_tenant = tenant_quotas(conn, settings, tenant_id, for_update=for_update)
    for name, limit, count in (
        ("batches_in_flight", of_tenant.batches_in_flight, quotas.count_batches),
        ("rows_in_flight", of_tenant.rows_in_flight, quotas.count_rows),
        ("queued_tokens", of_tenant.queued_tokens, quotas.count_tokens),
    ):
        if limit is not None and (in_use := count(conn, tenant_id)) >= limit:
            raise QuotaExceeded(name, limit=limit, in_use=in_use)


def check_room_for_bytes(
    conn: Connection,
    settings: Settings,
    tenant_id: str,
    num_bytes: int,
    *,
    for_update: bool = False,
) -> int | None:
    """The bytes that are left; None is no limit. Raises QuotaExceeded for fewer than asked."""
    limit = tenant_quotas(conn, settings, tenant_id, for_update=for_update).stored_bytes
    if limit is None:
        return None
    stored = quotas.count_bytes(conn, tenant_id)
    if stored + num_bytes > limit:
        raise QuotaExceeded("stored_bytes", limit=limit, in_use=stored + num_bytes)
    return limit - stored


def check_room_for_rows(control: Control, batch: Batch) -> None:
    """Raises BatchInvalid when what ingest has read so far is more than the tenant may have."""
    if batch.input_file_id is None:
        return  # of `gristmill run`, which has no tenants
    with control.ledger.read() as conn:
        of_tenant = tenant_quotas(conn, control.settings, batch.tenant_id)
        for code, noun, limit, count in (
            ("token_limit_exceeded", "prompt tokens", of_tenant.queued_tokens, quotas.count_tokens),
            ("too_many_tasks", "rows", of_tenant.rows_in_flight, quotas.count_rows),
        ):
            if limit is not None and (in_use := count(conn, batch.tenant_id)) > limit:
                raise BatchInvalid([_too_much(code, noun, limit=limit, in_use=in_use)], 1)


def _too_much(code: str, noun: str, *, limit: int, in_use: int) -> LineError:
    return LineError(
        code,
        f"With this file {in_use} {noun} or more would wait, and this tenant may have {limit} at "
        "once. Split the file, or wait until other batches have ended.",
        param="input_file_id",
    )


def max_rows_of(control: Control, tenant_id: str) -> int:
    """Most rows that one batch of the tenant may have."""
    with control.ledger.read() as conn:
        of_tenant = tenant_quotas(conn, control.settings, tenant_id).rows_per_batch
    limit = control.settings.max_rows
    return limit if of_tenant is None else min(limit, of_tenant)

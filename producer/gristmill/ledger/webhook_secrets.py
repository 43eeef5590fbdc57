"""Queries about the secrets of webhook endpoints as they lie in the Ledger, whatever tenant's."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed

from sqlalchemy import Connection, select, update

from gristmill.ledger.schema_webhooks import webhook_endpoints


@dataclass(frozen=True, slots=True)
class HeldSecrets:
    endpoint_id: str
    secret: str = field(repr=False)
    old_secret: str | None = field(repr=False)

    def with_secrets(self, secret: str, old_secret: str | None) -> HeldSecrets:
        return changed(self, secret=secret, old_secret=old_secret)


def list_page(conn: Connection, *, after_id: str, limit: int) -> list[HeldSecrets]:
    """By id, of endpoints that are not deleted: for an operator's key change, never a caller."""
    table = webhook_endpoints.c
    query = select(table.id, table.secret, table.old_secret).where(
        table.id > after_id, table.deleted_at.is_(None)
    )
    return [HeldSecrets(*row) for row in conn.execute(query.order_by(table.id).limit(limit))]


def replace(conn: Connection, before: HeldSecrets, after: HeldSecrets) -> bool:
    """False when they were changed meanwhile, by their owner or by another process."""
    table = webhook_endpoints.c
    statement = update(webhook_endpoints).where(
        table.id == before.endpoint_id,
        table.deleted_at.is_(None),
        table.secret == before.secret,
        table.old_secret.is_not_distinct_from(before.old_secret),
    )
    values = {"secret": after.secret, "old_secret": after.old_secret}
    return conn.execute(statement.values(**values)).rowcount == 1

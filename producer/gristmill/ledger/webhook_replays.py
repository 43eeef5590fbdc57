"""Queries that have the events of a span of time told again, as after an outage of the receiver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, and_

from gristmill.ledger import deliveries, webhooks
from gristmill.ledger.deliveries import DeliveryState
from gristmill.ledger.paging import Page, read_page
from gristmill.ledger.schema_webhooks import webhook_events
from gristmill.ledger.webhook_events import WebhookEvent


def list_between(
    conn: Connection,
    tenant_id: str,
    *,
    since: int,
    until: int,
    types: Sequence[str] = (),
    after_id: str | None = None,
    limit: int,
) -> Page[WebhookEvent] | None:
    """Those that happened from `since` to just before `until`, the oldest first.

    None when there is no event `after_id`. No `types` are all of them.
    """
    happened = and_(webhook_events.c.created_at >= since, webhook_events.c.created_at < until)
    of_types = (webhook_events.c.type.in_(types),) if types else ()
    return read_page(
        conn,
        webhook_events,
        lambda row: WebhookEvent(**row),
        of=(webhook_events.c.tenant_id == tenant_id,),
        shown=(happened, *of_types),
        limit=limit,
        after_id=after_id,
        newest_first=False,
    )


def replay(
    conn: Connection,
    events: Iterable[WebhookEvent],
    *,
    endpoint_id: str | None,
    undelivered_only: bool,
    now: int,
) -> int:
    """Send them again to who listens, or to the one endpoint if it does; how many deliveries.

    With `undelivered_only` what has arrived once is not sent there again.
    """
    num_deliveries = 0
    for event in events:
        listening = webhooks.list_listening(conn, event.tenant_id, event.batch_id, event.type)
        has_it: set[str] = set()
        if undelivered_only:
            found = deliveries.of_event(conn, event.tenant_id, event.id)
            has_it = {one.endpoint_id for one in found if one.state is DeliveryState.DELIVERED}
        wanted = [
            one for one in listening if endpoint_id in (None, one.id) and one.id not in has_it
        ]
        deliveries.replay(conn, event.id, wanted, now=now)
        num_deliveries += len(wanted)
    return num_deliveries

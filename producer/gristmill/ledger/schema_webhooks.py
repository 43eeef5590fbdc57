"""The tables of webhooks: who is told, of what, and what became of it.

Beside the other tables (schema.py), in the same metadata. Times are integer Unix seconds.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, Integer, String, Table, Text

from gristmill.ledger.schema import metadata

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    # Only for the events of this batch: the URL that came with it.
    Column("batch_id", String),
    Column("name", String, nullable=False),
    Column("url", String, nullable=False),
    # What the request for its batch brought; null when the batch was given a URL later.
    Column("asked_url", String),
    Column("event_types", JSON, nullable=False),
    # What the receiver has, sealed, since each delivery is signed with it; empty once it is gone.
    Column("secret", String, nullable=False),
    # Signs as well until then.
    Column("old_secret", String),
    Column("old_secret_until", BigInteger),
    Column("secret_rotated_at", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("disabled_at", BigInteger),
    Column("disabled_reason", String),
    # The row stays, since lists are read on from its id.
    Column("deleted_at", BigInteger),
    # Failures without a success between them, and when the first one was.
    Column("num_failures", Integer, nullable=False, default=0),
    Column("failing_since", BigInteger),
    # The circuit is open: nothing is sent before.
    Column("retry_at", BigInteger),
    Column("last_success_at", BigInteger),
    Index("webhook_endpoints_by_tenant", "tenant_id", "created_at", "id"),
    Index("webhook_endpoints_by_batch", "tenant_id", "batch_id"),
)

webhook_events = Table(
    "webhook_events",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("batch_id", String, nullable=False),
    Column("type", String, nullable=False),
    # The very text that each attempt signs and sends.
    Column("body", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Index("webhook_events_by_tenant", "tenant_id", "created_at", "id"),
    Index("webhook_events_by_batch", "tenant_id", "batch_id"),
    Index("webhook_events_by_age", "created_at"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("endpoint_id", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # When the schedule began: the event, or its replay; and the failures since then.
    Column("started_at", BigInteger, nullable=False),
    Column("num_failures", Integer, nullable=False, default=0),
    Column("num_attempts", Integer, nullable=False, default=0),
    Column("next_attempt_at", BigInteger, nullable=False),
    # Somebody is sending it; if he dies of it, another one may then.
    Column("claimed_until", BigInteger, nullable=False, default=0),
    Column("delivered_at", BigInteger),
    Index("webhook_deliveries_by_endpoint", "endpoint_id", "created_at", "id"),
    Index("webhook_deliveries_by_event", "event_id", "endpoint_id", unique=True),
    Index("webhook_deliveries_by_due", "state", "next_attempt_at"),
)

webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("delivery_id", String, primary_key=True),
    Column("n", Integer, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("attempted_at", BigInteger, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    # What the receiver answered; null when it did not, and `error` says why.
    Column("status_code", Integer),
    Column("error", String),
    # The first of what it wrote.
    Column("response_body", Text),
)

"""A control side whose batches end at once, and who hears of it; the clock is the test's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
from pipeline import PIN, TENANT, Bench, fast_folder, make_refusal, make_windows
from sqlalchemy import create_engine, make_url, text
from webhook_receiver import Receiver

from gristmill import crash_points
from gristmill.control import ingest
from gristmill.control.base import Control
from gristmill.control.sweep import sweep
from gristmill.control.webhook_signing import new_secret
from gristmill.control.webhooks import deliver_due
from gristmill.ledger import deliveries, webhook_events, webhooks
from gristmill.ledger.deliveries import Attempt, Delivery, DeliveryState
from gristmill.ledger.open import open_ledger
from gristmill.ledger.webhook_events import WebhookEvent
from gristmill.ledger.webhooks import ENDS, WebhookEndpoint
from gristmill.settings import Settings

START = 1_800_000_000
DAY_S = 86_400


@dataclass
class WebhookBench:
    bench: Bench

    def __post_init__(self) -> None:
        self.bench.clock.now = START
        self.bench.settings = Settings(shard_max_jobs=3, webhook_allowed_networks="127.0.0.0/8")

    @property
    def control(self) -> Control:
        return self.bench.control

    @property
    def now(self) -> int:
        return int(self.bench.clock.now)

    def listen(self, url: str, **changes: Any) -> WebhookEndpoint:
        """An endpoint that hears of all ends."""
        endpoint = WebhookEndpoint(
            id=f"we_{url.rpartition(':')[2].partition('/')[0]}",
            tenant_id=TENANT,
            name="n",
            url=url,
            event_types=ENDS,
            secret=new_secret(),
            created_at=self.now,
            updated_at=self.now,
        )
        endpoint = replace(endpoint, **changes)
        with self.control.ledger.write() as conn:
            webhooks.add(conn, endpoint)
        return endpoint

    def create(self, batch_id: str, *, expires_at: int | None = None) -> None:
        ingest.create_batch(
            self.control,
            TENANT,
            batch_id,
            model=PIN,
            seed="seed",
            input_fingerprint="sha",
            options={},
            expires_at=expires_at,
        )
        self.bench.batch_id = batch_id

    def end(self, *batch_ids: str) -> None:
        """Batches that are completed at once."""
        for batch_id in batch_ids:
            self.create(batch_id)
            self.bench.ingest(make_windows([make_refusal(0)]))
        sweep(self.control)

    def deliver(self, control: Control | None = None) -> int:
        return deliver_due(control or self.control)

    def deliver_until(self, until: int) -> None:
        """Let time pass up to then, without missing a moment at which something is due."""
        while True:
            self.deliver()
            waiting = [one.next_attempt_at for one in self.deliveries() if is_pending(one)]
            if not waiting or min(waiting) > until:
                self.bench.clock.now = max(until, self.now)
                return
            self.bench.clock.now = max(self.now, min(waiting))

    def endpoint(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        """As it is now."""
        with self.control.ledger.read() as conn:
            found = webhooks.get(conn, TENANT, endpoint.id)
        assert found is not None
        return found

    def events(self) -> list[WebhookEvent]:
        """The newest first."""
        with self.control.ledger.read() as conn:
            page = webhook_events.list_page(conn, TENANT, limit=100)
        assert page is not None
        return page.items

    def deliveries(self) -> list[Delivery]:
        events = self.events()
        with self.control.ledger.read() as conn:
            return [d for event in events for d in deliveries.of_event(conn, TENANT, event.id)]

    def attempts(self) -> list[Attempt]:
        with self.control.ledger.read() as conn:
            found = deliveries.attempts_of(conn, TENANT, self.deliveries())
        return [attempt for of_one in found.values() for attempt in of_one]


def is_pending(delivery: Delivery) -> bool:
    return delivery.state is DeliveryState.PENDING


@pytest.fixture(params=["sqlite", "postgresql"])
def hooks(request: pytest.FixtureRequest) -> Iterator[WebhookBench]:
    with fast_folder() as folder:
        bench = Bench(folder)
        if request.param == "postgresql":
            bench.ledger.close()
            bench.ledger = open_ledger(new_database(request.getfixturevalue("postgresql")))
        yield WebhookBench(bench)
        bench.ledger.close()


def new_database(server_url: str) -> str:
    server = make_url(server_url).set(drivername="postgresql+psycopg")
    name = f"hooks_{uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    url = server.set(database=name, drivername="postgresql")
    return url.render_as_string(hide_password=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crash_points.arm({})

"""What every control function works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.control.fleet_view import FleetView
from gristmill.control.webhook_vault import Vault
from gristmill.errors import UsageError
from gristmill.ledger import batches
from gristmill.ledger.batch import Batch
from gristmill.ledger.ledger import Ledger
from gristmill.pools import Fleet
from gristmill.prices import NO_PRICES, PriceTable
from gristmill.queues.base import Queue
from gristmill.settings import Settings
from gristmill.stores.base import Store
from gristmill.telemetry import NO_TELEMETRY, Telemetry
from gristmill.types import CONTROL_LANE


@dataclass(frozen=True, slots=True)
class Control:
    ledger: Ledger
    store: Store
    queue: Queue
    #: Unix time in seconds.
    clock: Callable[[], float]
    settings: Settings
    #: Where Bells are heard; a Lane of its own for each Ledger that shares a queue with others.
    control_lane: str = CONTROL_LANE
    prices: PriceTable = NO_PRICES
    telemetry: Telemetry = NO_TELEMETRY
    fleet_view: FleetView = field(default_factory=FleetView)

    @property
    def now(self) -> int:
        return int(self.clock())

    @property
    def fleet(self) -> Fleet:
        """Who takes work just now, and who is known."""
        most = self.settings.fleet_max_row_tokens
        return self.fleet_view.fleet(self.ledger, self.clock(), max_row_tokens=most)

    @property
    def vault(self) -> Vault:
        return Vault.of(self.settings)


def read_batch(control: Control, tenant_id: str, batch_id: str) -> Batch:
    """Raises UsageError when the tenant has no such batch."""
    with control.ledger.read() as conn:
        batch = batches.get(conn, tenant_id, batch_id)
    if batch is None:
        raise UsageError(f"There is no batch {batch_id!r}.")
    return batch

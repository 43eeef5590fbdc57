"""How many uploads run at once; others wait. Each holds a thread as long as its client takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from anyio import CapacityLimiter

__all__ = ["UploadSlots"]


class UploadSlots:
    """For one event loop. No tenant has more than its part, so that none keeps out the others."""

    def __init__(self, num_slots: int = 32, *, of_one_tenant: int = 8) -> None:
        self._threads = CapacityLimiter(num_slots)
        self._of_one_tenant = of_one_tenant
        #: Of those that upload just now.
        self._tenants: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, tenant_id: str) -> AsyncIterator[CapacityLimiter]:
        """One of the tenant's; with it a thread may be asked for."""
        own = self._tenants.get(tenant_id)
        if own is None:
            own = self._tenants[tenant_id] = CapacityLimiter(self._of_one_tenant)
        async with own:
            yield self._threads

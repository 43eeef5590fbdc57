"""How often a tenant may ask, over all API processes; how often an address may show wrong keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gristmill.ledger import quotas
from gristmill.ledger.ledger import Ledger

#: A process takes a minute's requests from the Ledger in so many portions.
PORTIONS = 20
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Standing:
    """How a tenant stands after one more request, which was `taken` or came too often."""

    taken: bool
    limit: int
    remaining: int
    #: Seconds until the next minute begins.
    reset_s: float


@dataclass(slots=True)
class _Share:
    """What this process may still hand out of a minute."""

    minute: int
    limit: int
    left: int
    #: What all processes together took from the Ledger.
    total: int


class RequestLimiter:
    """Any thread may call any method.

    Each process takes requests from the Ledger in portions and hands them out from memory. So in
    one minute of the clock a tenant never gets more than its limit, however many processes there
    are; it may miss what other processes took and did not need, a portion each. The Ledger is
    written to at most PORTIONS times a minute for a tenant, and once more by each process.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._shares: dict[str, _Share] = {}

    def take_at_hand(self, tenant_id: str, limit: int) -> Standing | None:
        """One request, without a look at the Ledger; None when it needs one."""
        now = self._clock()
        minute = int(now) // 60
        with self._lock:
            share = self._shares.get(tenant_id)
            # One minute ahead is the clock of another process.
            if share is None or not minute <= share.minute <= minute + 1:
                return None
            reset_s = max((share.minute + 1) * 60 - now, 0.001)
            if share.left > 0:
                share.left -= 1
                remaining = max(limit - share.total, 0) + share.left
                return Standing(True, limit, remaining, reset_s)
            # Nothing is left in the Ledger either, unless the limit was changed.
            if share.total >= share.limit == limit:
                return Standing(False, limit, 0, reset_s)
        return None

    def take(self, tenant_id: str, limit: int) -> Standing:
        """One request. Raises StoreError."""
        with self._taking:
            while True:
                found = self.take_at_hand(tenant_id, limit)
                if found is not None:
                    return found
                self._fetch(tenant_id, limit)

    def _fetch(self, tenant_id: str, limit: int) -> None:
        now = int(self._clock())
        with self._ledger.write() as conn:
            grant = quotas.take_requests(
                conn, tenant_id, now=now, wanted=max(limit // PORTIONS, 1), limit=limit
            )
        # A limit that was lowered meanwhile is passed already.
        total = max(grant.total, limit) if not grant.num_granted else grant.total
        with self._lock:
            if len(self._shares) >= _MAX_REMEMBERED:
                self._shares.clear()
            self._shares[tenant_id] = _Share(grant.minute, limit, grant.num_granted, total)


class FailedLogins:
    """Wrong keys by address, in this process. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._minute = 0
        self._counts: dict[str, int] = {}

    def wait_s(self, address: str, limit: int) -> float:
        """Seconds until the address may show another wrong key; 0 is now."""
        with self._lock:
            self._turn()
            if self._counts.get(address, 0) < limit:
                return 0.0
        return max((self._minute + 1) * 60 - self._clock(), 0.001)

    def add(self, address: str) -> None:
        """It has shown a wrong one."""
        with self._lock:
            self._turn()
            if len(self._counts) < _MAX_REMEMBERED or address in self._counts:
                self._counts[address] = self._counts.get(address, 0) + 1

    def _turn(self) -> None:
        minute = int(self._clock()) // 60
        if minute != self._minute:
            self._minute, self._counts = minute, {}

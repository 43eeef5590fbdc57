"""Whose turn it is on a Lane: fair shares between tenants, and deadlines that would be missed.

Policy only: plain values in, a decision out. `dispatch.py` reads and writes the Ledger.

**Shares.** Each tenant has a count of tokens that were finished for it, and in front of it those
that are out with workers. Whoever has the least is served next, so that tenants with work get the
same, token by token, whatever the size of their backlogs (start-time fair queueing, Goyal, Vin and
Cheng 1996). The Lane's `level` is the least finished count of all tenants with work, and never
falls. A tenant that comes back is lifted to it: being idle earns nothing. One that is far ahead,
since deadlines were served first, is let down to `max_lead` above it: nobody pays for ever.

**Deadlines.** They matter only when they get close: as long as all work that is due until some
moment can still be done by then with time to spare, shares decide. Else all that is due until that
moment goes first, the earliest deadline in front (the demand test of earliest deadline first).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Of so many Shards one goes to the tenant whose turn it is, however urgent others are.
URGENT_IN_A_ROW = 7
#: Time to spare: seconds, and a share of the time that is left.
SPARE_S, SPARE_SHARE = 60.0, 0.1
#: What would take so many times the time that is left is not worth hurrying for.
HOPELESS = 2.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Work that is due: of one batch, or of several with one deadline."""

    due_at: float
    num_tokens: float


def is_hopeless(demand: Demand, *, now: float, tokens_per_s: float) -> bool:
    """Whether it would come much too late even if all else waited for it."""
    return demand.num_tokens > HOPELESS * tokens_per_s * (demand.due_at - now)


def find_urgent_until(
    demands: Iterable[Demand], *, now: float, tokens_per_s: float
) -> float | None:
    """The deadline up to which work must go in the order of deadlines; None if there is time.

    `tokens_per_s` is what the workers accomplish together. Work that is hopeless is left out.
    """
    # What the Shards that go by shares in between leave of it.
    speed = tokens_per_s * URGENT_IN_A_ROW / (URGENT_IN_A_ROW + 1)
    if speed <= 0:
        return None
    urgent_until, work = None, 0.0
    for demand in sorted(demands, key=lambda demand: demand.due_at):
        left_s = demand.due_at - now
        if left_s <= 0 or is_hopeless(demand, now=now, tokens_per_s=tokens_per_s):
            continue
        work += demand.num_tokens
        if work / speed > left_s - max(SPARE_S, SPARE_SHARE * left_s):
            urgent_until = demand.due_at
    return urgent_until


class FairShare:
    """One round of turns on a Lane.

    `finished` has the tokens of tenants that have work waiting, None for one that is new;
    `under_way` those that are out with workers, of any tenants.
    """

    def __init__(
        self,
        level: int,
        finished: Mapping[str, int | None],
        under_way: Mapping[str, int],
        *,
        max_lead: int,
    ) -> None:
        back = {
            tenant_id: level if count is None else max(level, count)
            for tenant_id, count in finished.items()
        }
        self._level = min(back.values(), default=level)
        self._finished = {
            tenant_id: min(count, self._level + max_lead) for tenant_id, count in back.items()
        }
        self._under_way = dict(under_way)
        self._moved = {
            tenant_id: count - (finished[tenant_id] or 0)
            for tenant_id, count in self._finished.items()
            if count != finished[tenant_id]
        }

    @property
    def level(self) -> int:
        """The least that was finished for a tenant with work waiting."""
        return self._level

    @property
    def moved(self) -> Mapping[str, int]:
        """By how much tenants were lifted or let down; a new one from 0."""
        return self._moved

    def order(self) -> list[str]:
        """The tenants with work, the one whose turn it is in front."""
        return sorted(self._finished, key=lambda tenant_id: (self.standing(tenant_id), tenant_id))

    def standing(self, tenant_id: str) -> int:
        """Tokens finished and under way."""
        return self._finished[tenant_id] + self._under_way.get(tenant_id, 0)

    def charge(self, tenant_id: str, num_tokens: int) -> None:
        """So many tokens more are under way."""
        self._under_way[tenant_id] = self._under_way.get(tenant_id, 0) + num_tokens

    def drop(self, tenant_id: str) -> None:
        """The tenant has nothing left to be sent."""
        del self._finished[tenant_id]

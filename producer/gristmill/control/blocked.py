"""Which batches wait for a machine, wholly or in part, and for which one."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.ledger import size_classes
from gristmill.ledger.ledger import Ledger
from gristmill.needs import features_in
from gristmill.router import Fleet, Load, Needs, Never, Waits, route

_NOTHING_AHEAD = Load()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why some Shards of a batch are not sent; `is_all`: none of those that wait can be."""

    reason: str
    is_all: bool


def find_blocked(ledger: Ledger, fleet: Fleet, *, now: float) -> dict[str, Blocked]:
    """By batch. None while nobody takes work: then all wait, and not for one machine or another."""
    if not fleet.pools:
        return {}
    with ledger.read() as conn:
        waiting = size_classes.list_waiting(conn)
    reasons: dict[str, list[str | None]] = {}
    of_needs: dict[Needs, str | None] = {}  # thousands of batches are mostly of a few kinds
    for one, model in waiting:
        needs = Needs(model, one.max_row_tokens, one.least_row_tokens, features_in(one.size_class))
        if needs not in of_needs:
            of_needs[needs] = _why_not(needs, fleet, now)
        reasons.setdefault(one.batch_id, []).append(of_needs[needs])
    return {
        batch_id: Blocked(next(filter(None, of_batch)), all(of_batch))
        for batch_id, of_batch in reasons.items()
        if any(of_batch)
    }


def _why_not(needs: Needs, fleet: Fleet, now: float) -> str | None:
    """Why Shards with these needs are not sent; None if they are."""
    found = route(needs, fleet, _NOTHING_AHEAD, now=now)
    if isinstance(found, Waits):
        return found.reason
    if isinstance(found, Never):
        return f"{found.reason} Such rows are refused if none is started."
    return None

"""Which batches wait for a machine, wholly or in part, and for which one."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.ledger import routed, size_classes
from gristmill.ledger.ledger import Ledger
from gristmill.needs import features_in
from gristmill.router import Fleet, Load, Needs, Never, Waits, route

_NOTHING_AHEAD = Load()
#: Shards that were sent so many times without a sign of life are told of.
IN_VAIN = 3


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why some Shards of a batch are not sent; `is_all`: none of those that wait can be."""

    reason: str
    is_all: bool


def find_blocked(ledger: Ledger, fleet: Fleet, *, now: float) -> dict[str, Blocked]:
    """By batch. While nobody takes work, all wait, and not for one machine or another: then only
    what was sent in vain is told of, if workers that nobody has heard of may be there."""
    if not fleet.pools:
        return {} if fleet.known or fleet.loading else _find_unanswered(ledger)
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


def _find_unanswered(ledger: Ledger) -> dict[str, Blocked]:
    """Batches with Shards that were sent several times, where no worker has said what it is.

    It may be busy with others, or give back what is too long for it: nobody here can know.
    """
    with ledger.read() as conn:
        found = routed.list_unanswered(conn, min_rings=IN_VAIN)
    return {
        batch_id: Blocked(
            f"{num_shards:,} of its Shards, with rows of up to {row_tokens:,} tokens, were sent "
            f"{IN_VAIN} times or more and nobody has begun with them. No worker has told the "
            "control side what it is, so it is not known whether any takes such rows: a worker "
            "whose --max-model-len is too low gives them back, and if that goes on ends their "
            "answers where it must. Set GRISTMILL_FLEET_MAX_ROW_TOKENS to what the largest takes.",
            is_all=False,
        )
        for batch_id, num_shards, row_tokens in found
    }


def _why_not(needs: Needs, fleet: Fleet, now: float) -> str | None:
    """Why Shards with these needs are not sent; None if they are."""
    found = route(needs, fleet, _NOTHING_AHEAD, now=now)
    if isinstance(found, Waits):
        return found.reason
    if isinstance(found, Never):
        return f"{found.reason} Such rows are refused if none is started."
    return None

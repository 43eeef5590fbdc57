"""Quotas: what one tenant may use at once. Defaults are settings; a tenant may have its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from gristmill.errors import UsageError
from gristmill.settings import Settings


@dataclass(frozen=True, slots=True)
class Quotas:
    """None is no limit."""

    requests_per_min: int | None
    batches_in_flight: int | None
    rows_per_batch: int | None
    rows_in_flight: int | None
    queued_tokens: int | None
    stored_bytes: int | None


QUOTA_NAMES = tuple(field.name for field in fields(Quotas))


def quotas_of(settings: Settings, own: Mapping[str, int | None]) -> Quotas:
    """The settings' quotas, but for those that the tenant has of its own."""
    return Quotas(
        **{name: own.get(name, getattr(settings, f"quota_{name}")) for name in QUOTA_NAMES}
    )


class QuotaExceeded(UsageError):
    """The tenant has as much of something as it may have. Message for the caller."""

    def __init__(self, quota: str, *, limit: int, in_use: int) -> None:
        self.quota = quota
        super().__init__(_WHY[quota].format(limit=limit, in_use=in_use))


_WHY = {
    "batches_in_flight": "{in_use} batches are under way, which is all that this tenant may have "
    "at once ({limit}). Wait until one has ended, or cancel one.",
    "rows_in_flight": "{in_use} rows wait for their results, and this tenant may have {limit} of "
    "them. Wait until some are answered.",
    "queued_tokens": "{in_use} prompt tokens wait, and this tenant may have {limit} of them. Wait "
    "until some are computed.",
    "stored_bytes": "The files of this tenant would have {in_use} bytes, and it may keep {limit}. "
    "Delete some, or let them expire.",
}

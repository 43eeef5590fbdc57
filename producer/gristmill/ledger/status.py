"""The statuses of a batch, the edges between them, and why a batch stops."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class FreezeReason(StrEnum):
    """Why no more results of a batch are accepted."""

    COMPLETE = "complete"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    BUDGET = "budget"


_S = BatchStatus
EDGES: Mapping[BatchStatus, frozenset[BatchStatus]] = {
    _S.VALIDATING: frozenset({_S.FAILED, _S.IN_PROGRESS, _S.EXPIRED, _S.CANCELLING}),
    _S.IN_PROGRESS: frozenset({_S.FINALIZING, _S.EXPIRED, _S.CANCELLING}),
    _S.FINALIZING: frozenset({_S.COMPLETED}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.CANCELLED: frozenset(),
}

#: Statuses out of which something still has to happen.
OPEN = tuple(status for status, edges in EDGES.items() if edges)

#: Statuses out of which nothing happens any more.
ENDS = tuple(status for status, edges in EDGES.items() if not edges)

#: In which statuses a batch can be frozen for a reason, and how it ends then.
FREEZES_FROM: Mapping[FreezeReason, tuple[BatchStatus, ...]] = {
    FreezeReason.COMPLETE: (_S.IN_PROGRESS,),
    FreezeReason.BUDGET: (_S.IN_PROGRESS,),
    FreezeReason.EXPIRED: (_S.VALIDATING, _S.IN_PROGRESS),
    FreezeReason.CANCELLED: (_S.CANCELLING,),
}
END_OF: Mapping[FreezeReason, BatchStatus] = {
    FreezeReason.COMPLETE: _S.COMPLETED,
    FreezeReason.BUDGET: _S.COMPLETED,
    FreezeReason.EXPIRED: _S.EXPIRED,
    FreezeReason.CANCELLED: _S.CANCELLED,
}

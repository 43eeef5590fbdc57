"""The life of a batch as a list of moments, each with the time until the next one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from gristmill.ledger.batch import Batch


@dataclass(frozen=True, slots=True)
class Moment:
    """`lasted_s` until the next one; None for the last."""

    name: str
    at: int
    lasted_s: int | None = None


def timeline_of(batch: Batch) -> list[Moment]:
    """What has happened so far, in its order."""
    happened = [
        ("Created, waits to be read", batch.created_at),
        ("Checked and cut into Shards", batch.in_progress_at),
        ("First Shard sent to a worker", batch.first_sent_at),
        ("Cancelling", batch.cancelling_at),
        ("Result files being written", batch.finalizing_at),
        ("Completed", batch.completed_at),
        ("Failed its check", batch.failed_at),
        ("Expired", batch.expired_at),
        ("Cancelled", batch.cancelled_at),
    ]
    moments = sorted(
        (Moment(name, at) for name, at in happened if at is not None), key=lambda moment: moment.at
    )
    lasting = [Moment(one.name, one.at, next_.at - one.at) for one, next_ in pairwise(moments)]
    return [*lasting, *moments[-1:]]
